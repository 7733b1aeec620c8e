"""What the machine can do at best: float32 matrix products, and copies, on all cores, by the best library at hand."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from .contender import Contender, Work
from .race import Effort, race

MATRIX, COPY = "matrix rate", "copy bandwidth"
SIZE = 2048  # rows and columns: large enough for the full rate
BYTES = 2**28  # of the array that is copied, far beyond any cache


@dataclass(frozen=True)
class Limit:
    """What bounds a piece of work from below: floating-point operations at the matrix rate, or bytes at the copy bandwidth."""

    kind: str
    amount: float


def measured(effort: Effort) -> dict[str, float]:
    """Operations per second by MATRIX, and bytes per second by COPY, read and written: the best of each."""
    rates = {}
    for kind, amount, builds in (
        (MATRIX, 2.0 * SIZE**3, (numpy_product, torch_product, torch_linear)),
        (COPY, 2.0 * BYTES, (numpy_copy, torch_copy)),
    ):
        with ExitStack() as stack:
            times = race([stack.enter_context(Contender(build.__name__, build)) for build in builds], effort)
        rates[kind] = amount / min(min(seconds) for seconds in times.values())
    return rates


def _square() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)


def numpy_product() -> Work:
    x, out = _square(), np.empty((SIZE, SIZE), dtype=np.float32)
    return Work(lambda: np.matmul(x, x, out=out), lambda y: y)


def torch_product() -> Work:
    import torch

    x, out = torch.from_numpy(_square()), torch.empty((SIZE, SIZE))
    return Work(lambda: torch.mm(x, x, out=out), lambda y: y.numpy())


def torch_linear() -> Work:
    """Ours, which may take another library inside torch than ``torch.mm`` does."""
    import torch

    import mha_core as mha

    x = torch.from_numpy(_square())
    return Work(lambda: mha.linear(x, x), lambda y: y.numpy())


def numpy_copy() -> Work:
    x, y = np.ones(BYTES // 4, dtype=np.float32), np.zeros(BYTES // 4, dtype=np.float32)
    return Work(lambda: np.copyto(y, x), lambda _: y)


def torch_copy() -> Work:
    import torch

    x, y = torch.ones(BYTES // 4), torch.zeros(BYTES // 4)
    return Work(lambda: y.copy_(x), lambda out: out.numpy())
