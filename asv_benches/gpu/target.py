"""Where the benchmarks run: CuPy and torch on one GPU, or NumPy and torch on the CPU for a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from timeit import timeit
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.dispatch.backend import LoadedBackend, load

OURS, BLOCKS = "mha-core on CuPy", "mha-core on CuPy, by blocks"
Clock = Callable[[Callable[[], None]], float]
"""Function that returns the seconds that work takes on its device."""


@dataclass(frozen=True)
class Target:
    """The libraries and the device that the benchmarks run on."""

    arrays: LoadedBackend
    """The CuPy backend; NumPy's for a rehearsal."""
    device: str
    """torch's name of the device."""
    clock: Clock
    kernels: Mapping[str, tuple[tuple[str, str], ...]]
    """(operation, kernel) pairs that a contender demands by name, whatever would be chosen."""
    is_rehearsal: bool = False

    @property
    def dtype(self) -> str:
        """The dtype of all computations; NumPy itself has no bfloat16."""
        return "float32" if self.is_rehearsal else "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes per number."""
        return 4 if self.is_rehearsal else 2

    def normal(self, rng: np.random.Generator, *shape: int) -> tuple[Any, Any]:
        """Return the same normal numbers as arrays of the backend and of torch, rounded to the dtype."""
        import torch

        numbers = rng.normal(size=shape).astype(np.float32)
        ours = self.arrays.xp.astype(self.arrays.from_numpy(numbers, None), getattr(self.arrays.xp, self.dtype))
        return ours, torch.from_numpy(numbers).to(self.device, getattr(torch, self.dtype))

    def demanded(self, contender: str) -> AbstractContextManager[Any]:
        """Return a context in which the contender's kernels are demanded by ``use_kernel``."""
        stack = ExitStack()
        for op, name in self.kernels.get(contender, ()):
            stack.enter_context(mha.use_kernel(op, name))
        return stack


def gpu() -> Target:
    """Return the GPU. Raises BackendUnavailable if CuPy finds no device, RuntimeError if torch finds none."""
    arrays = load("cupy")
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("CuPy has a CUDA device, but torch has none: install a torch build for CUDA")
    kernels = {
        OURS: (("attention", "flash"), ("layer_norm", "fused"), ("encoder_layer", "fused")),
        BLOCKS: (("attention", "blocks"),),
    }
    return Target(arrays, "cuda:0", _by_events, kernels)


def host() -> Target:
    """Return the CPU, for tests and rehearsals without a GPU."""
    return Target(load("numpy"), "cpu", lambda work: timeit(work, number=1), {}, is_rehearsal=True)


def _by_events(work: Callable[[], None]) -> float:
    """Return seconds on the null stream, which torch and CuPy use by default."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3
