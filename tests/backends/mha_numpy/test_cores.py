"""The number of threads: what the machine and its control groups allow this process, or what the user sets."""

import math
import os
from functools import partial
from importlib import import_module

import pytest
from processes import printed

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_core.plugin import Backend
from mha_numpy import cores

UNIFIED = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup rw,nsdelegate\n"
SPLIT = (
    "31 23 0:27 {top} /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
    "32 23 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
)
DISK = "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def machine(root, groups, mounts, files):
    """A root directory with /proc/self and control groups."""
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": DISK + mounts} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def unified(root, path, limits, top="/"):
    files = {f"sys/fs/cgroup/{group}cpu.max": f"{limit}\n" for group, limit in limits.items()}
    return machine(root, f"0::{path}\n", UNIFIED.format(top=top), files)


def split(root, path, limits, top="/"):
    files = {}
    for group, (quota, period) in limits.items():
        files[f"sys/fs/cgroup/cpu,cpuacct/{group}cpu.cfs_quota_us"] = f"{quota}\n"
        files[f"sys/fs/cgroup/cpu,cpuacct/{group}cpu.cfs_period_us"] = f"{period}\n"
    groups = f"9:name=systemd:/elsewhere\n4:cpuset:/elsewhere\n3:cpu,cpuacct:{path}\n0::/elsewhere\n"
    return machine(root, groups, SPLIT.format(top=top), files)


@pytest.mark.parametrize(
    ("make", "path", "limits", "expected"),
    [
        (unified, "/", {}, math.inf),
        (unified, "/a/b", {"a/b/": "max 100000"}, math.inf),
        (unified, "/a/b", {"a/b/": "150000 100000"}, 1.5),
        (unified, "/a/b", {"a/b/": "400000 100000", "a/": "300000 100000"}, 3),
        (unified, "/a/b", {"a/b/": "max 100000", "": "100000 50000"}, 2),
        (unified, "/a/b", {"other/": "100000 100000"}, math.inf),
        (split, "/a/b", {"a/b/": (-1, 100000)}, math.inf),
        (split, "/a/b", {"a/b/": (250000, 100000), "a/": (-1, 100000), "": (-1, 100000)}, 2.5),
        (split, "/a/b", {"a/b/": (-1, 100000), "a/": (50000, 100000)}, 0.5),
    ],
)
def test_the_tightest_limit_of_the_enclosing_groups_counts(tmp_path, make, path, limits, expected):
    assert cores.cgroup_limit(make(tmp_path, path, limits)) == expected


@pytest.mark.parametrize(("make", "limit"), [(unified, "200000 100000"), (split, (200000, 100000))])
def test_the_limit_of_a_container_is_found(tmp_path, make, limit):
    """/proc gives the group's path on the host, while the mounted tree begins at the group itself."""
    assert cores.cgroup_limit(make(tmp_path / "same", "/docker/abc", {"": limit}, top="/docker/abc")) == 2
    assert cores.cgroup_limit(make(tmp_path / "inner", "/docker/abc/job", {"job/": limit}, top="/docker/abc")) == 2
    assert cores.cgroup_limit(make(tmp_path / "moved", "/../elsewhere", {"": limit})) == 2


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cores.cgroup_limit(tmp_path) == math.inf


@pytest.mark.parametrize(("limit", "expected"), [(math.inf, 6), (8.0, 6), (2.5, 3), (2.0, 2), (0.1, 1)])
def test_the_number_is_the_affinity_or_the_limit_rounded_up(monkeypatch, limit, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(cores, "cgroup_limit", lambda: limit)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores.available.cache_clear()
    try:
        assert cores.available() == expected
    finally:
        cores.available.cache_clear()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lacks os.sched_setaffinity")
def test_a_process_bound_to_one_core_uses_one_thread():
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    script += "from mha_numpy.threads import num_threads; print(num_threads())"
    assert printed(script) == "1\n"


# what the user sets


@pytest.fixture
def recorded(installed):
    """The numbers of threads that are set for two backends, which tests load early and late."""
    numbers = {"early": [], "late": []}
    for name, of_backend in numbers.items():
        namespace = partial(import_module, "numpy")
        installed(backends=[Backend(name, 1, (f"nowhere:{name}",), namespace, set_num_threads=of_backend.append)])
    yield tuple(numbers.values())
    mha.set_num_threads(None)


def test_the_number_is_set_on_every_loaded_backend_and_on_a_later_one_when_it_is_loaded(recorded):
    early, late = recorded
    load("early")
    assert early == []
    mha.set_num_threads(3)
    assert (early, late) == ([3], [])
    load("late")
    assert (early, late) == ([3], [3])
    mha.set_num_threads(None)
    assert (early, late) == ([3, None], [3, None])


def test_the_number_is_not_set_on_a_backend_loaded_after_it_was_reset(recorded):
    mha.set_num_threads(3)
    mha.set_num_threads(None)
    load("late")
    assert recorded == ([], [])


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        *((x, TypeError, f"n is {type(x).__name__}; expected an int") for x in (True, 2.0, "2", [2])),
        *((n, ValueError, f"n is {n}; expected at least 1") for n in (0, -1)),
    ],
)
def test_a_wrong_number_is_refused_and_changes_nothing(recorded, wrong, error, message):
    early, _ = recorded
    load("early")
    with pytest.raises(error, match=message):
        mha.set_num_threads(wrong)
    assert early == []
