"""Files that are written whole or not at all: what they replace, what they keep, and what a killed process leaves."""

import errno
import os
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import printed, run

from mha_core.layers.atomic import atomic_file

LONG = "ü" * 125 + ".npy"  # 254 bytes


def write(path, content=b"new"):
    with atomic_file(path) as file:
        file.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(path)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


def test_a_new_file_has_the_permissions_that_open_would_give_it(tmp_path):
    write(tmp_path / "written")
    (tmp_path / "touched").touch()
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "touched").stat().st_mode


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(folder / "target")
    (tmp_path / "dangling").symlink_to(folder / "new")
    for name in ("link", "dangling"):
        write(tmp_path / name)
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_bytes() == b"new"
    assert names(folder) == ["new", "target"]


def test_a_pipe_receives_the_bytes_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(path.read_bytes)
        write(path, b"x" * 100_000)
    assert received.result() == b"x" * 100_000
    assert stat.S_ISFIFO(path.stat().st_mode) and names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", ["x" * 255, LONG], ids=["255 letters", "254 bytes of two-byte letters"])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path, name):
    write(tmp_path / name)
    assert names(tmp_path) == [name]


def test_a_device_is_written_into():
    write(Path("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("loop", ""), ("/dev/full", "No space left on device"), ("x" * 256, "File name too long")],
    ids=["a link to itself", "a full device", "a long name"],
)
def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path, name, reason):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=f"^{re.escape(str(tmp_path / name))} cannot be written: {reason}"):
        write(tmp_path / name)
    assert names(tmp_path) == ["loop"]


LIMITED = """
import resource, sys
from pathlib import Path
from mha_core.layers.atomic import atomic_file
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    with atomic_file(Path(sys.argv[1])) as file:
        for _ in range(100):
            file.write(bytes(int(sys.argv[2])))
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("size", [130, 400, 9000])
def test_a_file_that_grows_too_large_is_named_however_it_is_written_and_leaves_the_old_one(tmp_path, size):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    assert printed(LIMITED, path, size) == f"{path} cannot be written: File too large\n"
    assert path.read_bytes() == b"old" and names(tmp_path) == ["x"]


def test_writers_of_one_path_do_not_remove_each_other_s_files(tmp_path):
    path = tmp_path / "x"

    def writer(number):
        for _ in range(60):
            write(path, bytes([number]) * 1000)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(writer, range(4)))
    assert len(set(path.read_bytes())) == 1 and names(tmp_path) == ["x"]


def test_a_file_system_without_locks_can_be_written_to(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / ".x.abcdefgh.part").touch()  # may be another process's: it cannot be told
    write(tmp_path / "x")
    assert names(tmp_path) == [".x.abcdefgh.part", "x"]


def test_an_error_about_another_file_is_not_renamed(tmp_path):
    with pytest.raises(FileNotFoundError, match="texts"), atomic_file(tmp_path / "x.npy"):
        (tmp_path / "texts").open()


KILLED = """
import os, signal, sys
from pathlib import Path
from mha_core.layers.atomic import atomic_file
with atomic_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["x.npy", LONG], ids=["short", "long"])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, name):
    assert run([sys.executable, "-c", KILLED], tmp_path / name).returncode == -9
    (left,) = names(tmp_path)
    assert left.endswith(".part")
    write(tmp_path / "other.npy")
    assert left in names(tmp_path)  # of another path
    write(tmp_path / name)
    assert names(tmp_path) == sorted(["other.npy", name])


def test_a_file_that_is_being_written_is_not_removed(tmp_path):
    path = tmp_path / "x.npy"
    with atomic_file(path) as first:
        first.write(b"first")
        write(path, b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and names(tmp_path) == ["x.npy"]


def test_files_that_only_look_alike_stay(tmp_path):
    alike = [".x.npy.part", ".x.npy.UPPERCAS.part", ".x.npy.backup.part2", "x.npy.abcdefgh.part"]
    for name in alike:
        (tmp_path / name).touch()
    write(tmp_path / "x.npy")
    assert names(tmp_path) == sorted([*alike, "x.npy"])


def test_the_umask_is_never_changed(tmp_path, monkeypatch):
    """All threads of a process share it: a file that another one makes meanwhile would be writable for everybody."""
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was called"))
        with atomic_file(tmp_path / "x") as file:
            file.write(b"x")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640
