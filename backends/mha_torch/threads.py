"""Independent tasks on all cores: Python threads, each of which makes torch compute with one.

An operation of torch that uses all cores leaves some of them idle at its end, and all but one in its serial parts; a thread for
each task leaves none. torch's own number of threads belongs in part to the process, so those of OpenMP and MKL are set, which
belong to the calling thread.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, islice
from pathlib import Path
from threading import Thread
from typing import Any

import torch

_AHEAD = 2  # tasks per thread that begin before their results are requested


def parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of ``function(item)`` in the order of the items. Few items are read ahead.

    Tasks run one after another if there is one item or one thread, if an accelerator may be computing, if the thread count of
    torch's libraries cannot be set for one thread alone, and inside modes and transforms of torch, which belong to a thread.
    """
    remaining, threads = iter(items), torch.get_num_threads()
    if threads == 1 or not _is_plain() or _setters() is None:
        return map(function, remaining)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        return map(function, first)
    return _results(_with_modes(function), chain(first, remaining), threads)


def _results(task: Callable[[Any], Any], items: Iterator[Any], threads: int) -> Iterator[Any]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="mha-torch", initializer=_use_one_thread)
    try:
        begun = deque(pool.submit(task, item) for item in islice(items, _AHEAD * threads))
        while begun:
            result = begun.popleft().result()
            begun.extend(pool.submit(task, item) for item in islice(items, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)


def _is_plain() -> bool:
    """Return whether nothing changes what operations of this thread mean."""
    transforms = torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack() or torch._C._is_any_autocast_enabled()
    traced = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return not (transforms or modes or traced or torch.accelerator.is_available())


def _with_modes(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with this thread's modes of autograd, in whichever thread it runs."""
    is_inference, records = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def task(item: Any) -> Any:
        with torch.inference_mode(is_inference), torch.set_grad_enabled(records):
            return function(item)

    return task


def _use_one_thread() -> None:
    """Make torch compute with this thread alone."""
    torch.get_num_threads()  # the first operation of a thread would set the number again
    for set_number in _setters() or ():
        set_number(1)


@cache
def _setters() -> tuple[Callable[[int], Any], ...] | None:
    """Return what sets the number of threads of OpenMP and MKL for the calling thread; None if that is not known to work."""
    names = ["omp_set_num_threads"] + ["MKL_Set_Num_Threads_Local"] * torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        setters = tuple(getattr(library, name) for name in names)
    except (StopIteration, OSError, AttributeError):  # such as on Windows, where a library does not show what it is linked to
        return None
    numbers = []

    def try_it() -> None:
        torch.get_num_threads()
        for set_number in setters:
            set_number(1)
        numbers.append(torch.get_num_threads())

    thread = Thread(target=try_it)
    thread.start()
    thread.join()
    return setters if numbers == [1] else None
