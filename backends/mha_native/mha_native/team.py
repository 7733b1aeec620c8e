"""The threads that torch computes with, for the compiled module and for tasks in Python.

After a product torch's threads spin for a while, and other threads would wait for their cores.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mha_numpy.shared import Shield, scratch_kept_in, shielded

__all__ = ["num_threads", "run", "team"]

_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Inside(threading.local):
    """``task``: True while this thread computes a task. ``boxes``: scratch memory of the threads that its calls borrow."""

    def __init__(self) -> None:
        self.task = False
        self.boxes: list[dict[str, Any]] = []


_inside, _lost = _Inside(), False  # a forked process lacks the threads of a team that its parent used


@cache
def team() -> int:
    """Return the address of GOMP_parallel in the OpenMP library that torch computes with; 0 if that library is not GNU's.

    torch loads its OpenMP library with global symbols. A lookup in the process therefore returns the function that torch calls,
    even if another package has loaded a second library. The libraries of Intel and LLVM define GOMP_parallel too, so the file's
    name is checked.
    """
    maps = Path("/proc/self/maps")
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if maps.exists() else None
    if function is None:
        return 0
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    for line in maps.read_text().splitlines():
        first, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
        if first <= address < end:
            return address if Path(line.split(maxsplit=5)[-1]).name.startswith("libgomp") else 0
    return 0


def num_threads() -> int:
    """Return how many threads compute tasks: torch's number, and 1 inside of a task or where the team cannot be used."""
    return 1 if _inside.task or _lost or not team() else torch.get_num_threads()


def run(function: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Call ``function(item)`` for all items on torch's threads, in the caller's context and modes of autograd.

    If a task raises, no further task begins, and the first exception is raised once the tasks that have begun are done. A
    call from inside a task runs its own tasks one after another.
    """
    if _inside.task:
        for item in items:
            function(item)
    else:
        shielded(_run, function, deque(items))


def _run(shield: Shield, function: Callable[[Any], Any], items: deque[Any]) -> None:
    errors: list[BaseException] = []
    caller, boxes, context = threading.get_ident(), _inside.boxes, copy_context()
    is_inference, records = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def take(own: Shield) -> None:
        _inside.task = True
        try:
            for item in _taken(items):
                own.compute(context.copy().run, function, item)
        finally:
            _inside.task = False

    def work(_: int | None) -> None:
        try:
            if threading.get_ident() == caller:
                take(shield)
                return
            box = boxes.pop() if boxes else {}
            with torch.inference_mode(is_inference), torch.set_grad_enabled(records), scratch_kept_in(box):
                take(Shield())
            boxes.append(box)
        except BaseException as error:  # raised in the caller
            errors.append(error)
            items.clear()

    if (threads := num_threads()) > 1:
        _parallel()(_Entry(work), None, threads, 0)  # all of them: a smaller team would end the others for good
    else:
        work(None)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # its traceback has this frame, which holds the list


def _taken(items: deque[Any]) -> Iterator[Any]:
    """Take items, as other threads do, until none is left."""
    while True:
        try:
            yield items.popleft()
        except IndexError:
            return


@cache
def _parallel() -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, _Entry, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(team())


def _lose_team() -> None:
    global _lost
    _lost = True
    _inside.task = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_team)
