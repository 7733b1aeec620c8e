"""callgrind: its command, the requests that a program in it makes, and the files that it writes.

The requests are valgrind's own (callgrind.h): a sequence of instructions that does nothing on a processor, and calls the tool
within valgrind. The simulated caches have one size everywhere; otherwise callgrind takes the machine's.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CACHES = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64")
L1_MISS, LAST_MISS = 10, 100
"""Cycles of a miss, of the first and of the last level: the weights of KCachegrind's cycle estimation."""

# rax = address of the request and its arguments, rdx = result outside valgrind; the four rotations turn rdi by 128 bits
_CALL = bytes.fromhex("4889f8 4889f2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
_TOOL = ord("C") << 24 | ord("T") << 16
_ZERO, _DUMP_AT, _START, _STOP = (_TOOL + number for number in (1, 3, 4, 5))


def missing() -> str:
    """Return why instructions cannot be counted here; "" if they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"instructions are counted on Linux on x86-64 only; this is {platform.system()} on {platform.machine()}"
    cpu = Path("/proc/cpuinfo")
    if cpu.exists() and "avx2" not in cpu.read_text(encoding="utf-8").split():
        return "instructions are counted on a machine with AVX2, which this one lacks: its counts would be others"
    if not all(map(shutil.which, ("valgrind", "setarch"))):
        return "instructions are counted by valgrind, which is not installed; on Debian: apt install valgrind"
    return ""


def version() -> str:
    """Return the version of valgrind, such as 3.19.0."""
    done = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("valgrind-")


def command(*, caches: bool = True) -> list[str]:
    """Return the command that runs a program in callgrind, at fixed addresses; its files go to the current folder."""
    options = ["--tool=callgrind", "--instr-atstart=no", "--log-file=%p.log", "--callgrind-out-file=%p.out"]
    return ["setarch", "--addr-no-randomize", "valgrind", *options, *(CACHES if caches else ())]


class Requests:
    """Requests to callgrind from the program that runs in it."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(_CALL)
        signature = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
        self._call = signature(ctypes.addressof(ctypes.c_char.from_buffer(self._code)))
        self._words = (ctypes.c_size_t * 6)()  # made once: a new array type takes a hundred thousand instructions
        self._at = ctypes.addressof(self._words)

    def start(self) -> None:
        """Count from here on."""
        self._request(_START)
        self._request(_ZERO)

    def stop(self) -> None:
        """Count nothing from here on; what follows runs faster."""
        self._request(_STOP)

    @staticmethod
    def label(name: str) -> ctypes.Array[ctypes.c_char]:
        """Return the name of a dump; made in advance, because it takes as many instructions as a short call."""
        return ctypes.create_string_buffer(name.encode())

    def dump(self, label: ctypes.Array[ctypes.c_char]) -> None:
        """Write what was counted since the last dump to a file that has this name in it, and count from zero."""
        self._request(_DUMP_AT, ctypes.addressof(label))

    def _request(self, number: int, argument: int = 0) -> None:
        self._words[0], self._words[1] = number, argument
        self._call(self._at, 0)


def dumps(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each dump in a folder, by process and in the order in which they were made."""
    for path in sorted(folder.glob("*.out.*"), key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)]):
        if match := re.search(r"^desc: Trigger: Client Request: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield match[1], path


def figures(path: Path) -> tuple[int, int]:
    """Return the instructions and the estimated cycles of a dump that was made with caches.

    `totals` is not used: with simulated caches it counts vector loads and stores wrongly (valgrind 3.19).
    """
    text = path.read_text(encoding="utf-8")
    names, numbers = (re.search(rf"^{word}: (.*)$", text, re.MULTILINE) for word in ("events", "summary"))
    assert names is not None and numbers is not None, f"{path} is no dump of callgrind"
    events = dict(zip(names[1].split(), map(int, numbers[1].split()), strict=False))
    first = sum(events.get(name, 0) for name in ("I1mr", "D1mr", "D1mw"))
    last = sum(events.get(name, 0) for name in ("ILmr", "DLmr", "DLmw"))
    return events["Ir"], events["Ir"] + L1_MISS * first + LAST_MISS * last


def functions(path: Path) -> Counter[str]:
    """Return the instructions of each function of a dump, without those of functions that it calls.

    Functions are named ``library: function``; a library without symbols has addresses in place of names.
    """
    names: dict[tuple[str, str], str] = {}
    counts: Counter[str] = Counter()
    where = {"ob": "", "fn": ""}
    inclusive = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(ob|fn|cob|cfn|calls)=(?:(\(\d+\)) ?)?(.*)$", line):
            kind, number, name = match.groups()
            if kind == "calls":
                inclusive = True
                continue
            key = kind.removeprefix("c"), number or ""
            if name and number:
                names[key] = name
            if not kind.startswith("c"):
                where[kind] = names.get(key, name)
        elif match := re.match(r"[+*-]?\d* (\d+)", line):
            if not inclusive:
                counts[f"{Path(where['ob']).name}: {where['fn']}"] += int(match[1])
            inclusive = False
    return counts
