"""Builds of the compiled plugin under sanitizers, one of them with AMX emulated, and processes that use them."""

import fcntl
import shutil
from functools import cache, partial

import pytest
from processes import printed
from processes import run as in_process
from project import ROOT

needs_sanitizers = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, whose sanitizers are used")


def library(name):
    return printed(["g++", f"-print-file-name={name}"]).strip()


@cache
def built(name):
    """Return the folder of a build; one process makes it, and the others wait."""
    with (ROOT / "build" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        printed(["make", f"build/{name}/ready"], cwd=ROOT)
    return ROOT / "build" / name


def run(build, libraries, command, cwd, more=(), **environment):
    environment |= {"LD_PRELOAD": " ".join(map(library, libraries)), "ASAN_OPTIONS": "detect_leaks=0"}
    return in_process(command, cwd=cwd, path=[built(build), *more, ROOT, ROOT / "backends"], **environment)


with_address_sanitizer = partial(run, "native-asan", ("libasan.so", "libubsan.so"))
with_emulated_amx = partial(run, "native-amx", ("libasan.so", "libubsan.so"))
with_thread_sanitizer = partial(run, "native-tsan", ("libtsan.so",))
