"""The program that runs in callgrind: it counts the calls of one backend, each case in a process of its own.

The process loads the backend's library and forks for each case, so all cases begin in the same state. A library that has
started threads cannot be forked; its cases then run in this process, one after another. Nothing of ``mha_core`` is imported
before the first case, which may be the import itself.

The program runs once more without callgrind, to check the answers, which would take minutes there. A third way to run it counts
the bytecode instructions of each Python function, which callgrind cannot tell apart.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from .callgrind import Requests
from .cases import COUNTED, Counted

POOL = 16384
"""Bytes of a pool, in which Python's allocator keeps blocks of one size."""
EMPTY = sys.getsizeof(b"")
"""Bytes of an object of type bytes without content."""


def main() -> None:
    """Do what the argument asks of the cases that it names, in JSON; answers and errors are files in the current folder."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    if asked["what"] == "check":
        for case in asked["cases"]:
            _check(case)
        return
    gc.disable()
    _elsewhere = [bytearray(64 * size) for size in range(1000 * asked["run"])]  # what is imported next lies after these
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores it, and kernels shield it
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # kernels ask how many cores there are
    for name in asked["libraries"]:
        importlib.import_module(name)
    requests = Requests() if asked["what"] == "count" else None
    for case in asked["cases"]:
        answer = partial(_counted, case, asked["backend"], requests) if requests else partial(_traced, case, asked["backend"])
        if len(os.listdir("/proc/self/task")) > 1:
            _keep(case, answer)
            continue
        if child := os.fork():
            if os.waitpid(child, 0)[1]:  # it died: what an earlier one wrote does not count
                answer_file(case).unlink(missing_ok=True)
        else:
            _keep(case, answer)
            os._exit(0)


def answer_file(case: str) -> Path:
    """Return the file, in the current folder, with the outcome of a case.

    It is a pair: True and the answer, or False and the words of an error, or None and what mha_core lacks.
    """
    return Path(f"{list(COUNTED).index(case)}.answer")


def _keep(case: str, answer: Callable[[], Any]) -> None:
    """Pickle the outcome of a case to its file."""
    try:
        outcome: tuple[bool | None, Any] = (True, answer())
    except Exception as error:
        traceback.print_exc()
        lacking = isinstance(error, AttributeError) and error.obj is sys.modules.get("mha_core")
        outcome = (None if lacking else False, f"{type(error).__name__}: {error}")
    answer_file(case).write_bytes(pickle.dumps(outcome))


def _check(case: str) -> None:
    """Check the answer of a case, if there is one, and replace it by None."""
    good, answer = pickle.loads(answer_file(case).read_bytes()) if answer_file(case).exists() else (False, "")
    if good:
        _keep(case, lambda: COUNTED[case].problem.judge()(answer))


def _counted(case: str, backend: str, requests: Requests) -> Any:
    """Count the calls of a case, and return the last answer."""
    counted: Counted = COUNTED[case]
    work = counted.problem.ours(backend)
    call, wait = work.call, work.wait or (lambda: None)
    answer: Any = None
    start, nothing, calls = (Requests.label(f"{name} of {case}") for name in ("start", "nothing", "calls"))
    held: list[object] = []
    with work.mode():
        for _ in range(counted.warm):
            answer = call()
        wait()
        requests.start()
        for part in range(counted.groups + 1):
            if counted.processes > 1:
                held += _drawn_again(counted.groups)
                for _ in range(2 * counted.warm):  # bytecode is specialised again
                    call()
                wait()
            requests.dump(start)  # the first dump does more than others
            for _ in range(counted.calls if part else 0):
                answer = call()
            wait()
            requests.dump(calls if part else nothing)
        requests.stop()
    return work.read(answer)


def _drawn_again(groups: int) -> list[list[object]]:
    """Change where the next calls' objects and attributes lie; return objects that must be held until the calls are counted.

    The last free block of one of Python's pools costs a call 60 instructions, so some blocks of each size are taken. Two
    attributes at one place of Python's cache of attributes cost a call 1000, so every type gets another version, which moves
    its attributes to other places.
    """
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(object))
    return [[bytes(size - EMPTY) for _ in range(POOL // size // groups)] for size in range(48, 513, 16)]


def _traced(case: str, backend: str) -> dict[str, int]:
    """Return how many bytecode instructions of each Python function a call of a case runs."""
    counted: Counted = COUNTED[case]
    work = counted.problem.ours(backend)
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            counts[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"] += 1
        return trace

    with work.mode():
        for _ in range(min(counted.warm, 3)):
            work.call()
        sys.settrace(trace)
        work.call()
        sys.settrace(None)
    return dict(counts)


if __name__ == "__main__":
    main()
