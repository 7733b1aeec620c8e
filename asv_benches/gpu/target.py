"""Where work runs: CuPy's arrays and torch's, on one card and one stream. For a rehearsal, NumPy's and torch's, on the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import mha_core as mha
from mha_core.dispatch.backend import LoadedBackend, load

OURS, BLOCKS = "mha-core on CuPy", "mha-core on CuPy, by blocks"
Clock = Callable[[Callable[[], None]], float]
"""The seconds that work takes, on the device that it runs on."""


@dataclass(frozen=True)
class Target:
    """``arrays``: the backend of CuPy. ``kernels``: what a contender demands by name, since nothing else would choose it."""

    arrays: LoadedBackend
    device: str
    clock: Clock
    kernels: Mapping[str, tuple[tuple[str, str], ...]]
    is_rehearsal: bool = False

    @property
    def dtype(self) -> str:
        """What all is computed in; NumPy has no bfloat16 of its own."""
        return "float32" if self.is_rehearsal else "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 4 if self.is_rehearsal else 2

    def pair(self, numbers: Any) -> tuple[Any, Any]:
        """The same numbers, rounded to the dtype, on both target."""
        import torch

        ours = self.arrays.xp.astype(self.arrays.from_numpy(numbers, None), getattr(self.arrays.xp, self.dtype))
        return ours, torch.from_numpy(numbers).to(self.device, getattr(torch, self.dtype))

    def demanded(self, contender: str) -> AbstractContextManager[Any]:
        stack = ExitStack()
        for op, name in self.kernels.get(contender, ()):
            stack.enter_context(mha.use_kernel(op, name))
        return stack


def gpu() -> Target:
    """Raises BackendUnavailable where CuPy has no device, and RuntimeError where torch has none."""
    arrays = load("cupy")
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("CuPy has a CUDA device, but torch has none: its build is for the CPU")
    kernels = {
        OURS: (("attention", "flash"), ("layer_norm", "fused"), ("encoder_layer", "fused")),
        BLOCKS: (("attention", "blocks"),),
    }
    return Target(arrays, "cuda:0", _by_events, kernels)


def host() -> Target:
    """Everything but the card: for the tests of this, and before one is hired."""
    return Target(load("numpy"), "cpu", _by_time, {}, is_rehearsal=True)


def _by_events(work: Callable[[], None]) -> float:
    """Of the null stream, which is torch's and CuPy's own."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3


def _by_time(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
