"""The number of threads: the one that the user set, or else the number of cores that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from . import blas

_chosen: int | None = None


def num_threads() -> int:
    """Return the number of threads that was set, or else the number of cores that this process may use."""
    return _chosen or available()


def set_num_threads(count: int | None) -> None:
    """Set the number of threads for tasks, and for the BLAS's products outside of tasks; None restores the default."""
    global _chosen
    _chosen = count
    blas.set_count(count)


@cache
def available() -> int:
    """Return the number of cores that this process may use.

    These are the cores in its affinity mask, or fewer if its control group may use less CPU time, or if OMP_NUM_THREADS, which
    the BLAS and torch follow too, says so.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has a number for each level of nesting
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cgroup_limit(), int(asked) if asked.strip().isdecimal() else cores)))


def cgroup_limit(root: Path = Path("/")) -> float:
    """Return the tightest limit of the process's control group and the groups around it, in cores; inf without a limit.

    Source: cgroups(7), proc_pid_mountinfo(5); the kernel's admin-guide/cgroup-v2 (``cpu.max``) and scheduler/sched-bwc
    (``cpu.cfs_quota_us``).
    """
    return min((_limit(group) for group in _groups(root)), default=math.inf)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of the control groups that limit the process's CPU time, innermost first."""
    memberships = [line.split(":", 2) for line in _lines(root / "proc/self/cgroup")]
    paths = {  # version 2, or version 1 with the cpu controller
        "cgroup2" if number == "0" else "cgroup": path
        for number, controllers, path in memberships
        if number == "0" or "cpu" in controllers.split(",")
    }
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        if kind not in paths or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        top, point = mount.split(" ")[3:5]
        directory = root / point.lstrip("/")
        group = PurePosixPath(paths[kind])  # in a container it may be outside of the mounted tree
        inside = group.relative_to(top).parts if group.is_relative_to(top) and ".." not in group.parts else ()
        yield from (directory.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1))


def _limit(group: Path) -> float:
    """Return the limit of one control group, in cores."""
    quota, period = "max", "1"
    for line in _lines(group / "cpu.max"):
        quota, period = line.split()
    for quota in _lines(group / "cpu.cfs_quota_us"):  # noqa: B007
        (period,) = _lines(group / "cpu.cfs_period_us")
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; [] if the system does not provide it."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
