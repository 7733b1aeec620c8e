"""What the machine can do at best: float32 matrix products, and copies, on all cores, by the best library at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .contender import Contender, ContenderFailed
from .race import Effort, race
from .work import Work, loaded, on

MATRIX, COPY = "matrix rate", "copy bandwidth"
SIZE = 2048  # rows and columns: large enough for the full rate
BYTES = 2**28  # of the array that is copied, far beyond any cache
HOST = 1
"""The number of a CPU among the devices of the array API's ``__dlpack_device__``."""


@dataclass(frozen=True)
class Limit:
    """What bounds a piece of work from below: floating-point operations at the matrix rate, or bytes at the copy bandwidth."""

    kind: str
    amount: float


def measured(backends: Sequence[str], effort: Effort, kinds: Collection[str] = (MATRIX, COPY)) -> dict[str, dict[str, float]]:
    """For each backend operations per second by MATRIX, and bytes per second, read and written, by COPY.

    The best of these backends whose arrays lie on the same kind of device, NumPy itself counting on the host. What cannot be
    measured is not there: a backend that does not say where its arrays lie has no limit.
    """
    devices = {}
    for name in backends:
        with Contender(name, device, name) as asked, suppress(ContenderFailed):
            devices[name] = int(asked.answer())
    builds: dict[str, tuple[float, Callable[[], Work], tuple[Callable[[str], Work], ...]]] = {
        MATRIX: (2.0 * SIZE**3, numpy_product, (product, linear)),
        COPY: (2.0 * BYTES, numpy_copy, (copy,)),
    }
    best = {kind: _best(*builds[kind], devices, effort) for kind in builds if kind in kinds}
    return {name: {kind: rates[at] for kind, rates in best.items() if at in rates} for name, at in devices.items()}


def _best(
    amount: float,
    host: Callable[[], Work],
    builds: Sequence[Callable[[str], Work]],
    devices: Mapping[str, int],
    effort: Effort,
) -> dict[int, float]:
    """The greatest rate on each kind of device."""
    with ExitStack() as stack:
        entered = [stack.enter_context(Contender("NumPy", host))]
        for name in devices:
            entered += [stack.enter_context(Contender(f"{name}, {build.__name__}", build, name)) for build in builds]
        times = race([each for each in entered if _warm(each)], effort)
    kinds = {"NumPy": HOST} | {f"{name}, {build.__name__}": at for name, at in devices.items() for build in builds}
    found: dict[int, float] = {}
    for name, seconds in times.items():
        found[kinds[name]] = max(found.get(kinds[name], 0.0), amount / min(seconds))
    return found


def _warm(contender: Contender) -> bool:
    """Whether it can do its work; what is loaded and compiled on the first call is then there, and not timed."""
    try:
        contender.time(1)
    except ContenderFailed:
        return False
    return True


def device(backend: str) -> Work:
    """The kind of device on which a backend's arrays lie, unless told."""
    there = loaded(backend)
    kind, _ = there.from_numpy(np.zeros(1, dtype=np.float32)).__dlpack_device__()
    return Work(lambda: kind, lambda number: number)


def _square() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)


def numpy_product() -> Work:
    x, out = _square(), np.empty((SIZE, SIZE), dtype=np.float32)
    return Work(lambda: np.matmul(x, x, out=out), lambda y: y)


def product(backend: str) -> Work:
    there = loaded(backend)
    x = there.from_numpy(_square())
    return on(there, lambda: there.xp.matmul(x, x))


def linear(backend: str) -> Work:
    """Ours, which may take another library inside the backend's than its ``matmul`` does."""
    import mha_core as mha

    there = loaded(backend)
    x = there.from_numpy(_square())
    return on(there, lambda: mha.linear(x, x))


def numpy_copy() -> Work:
    x, y = np.ones(BYTES // 4, dtype=np.float32), np.zeros(BYTES // 4, dtype=np.float32)
    return Work(lambda: np.copyto(y, x), lambda _: y)


def copy(backend: str) -> Work:
    """Into a new array, as not every library writes into an old one."""
    there = loaded(backend)
    x: Any = there.from_numpy(np.ones(BYTES // 4, dtype=np.float32))
    return on(there, lambda: there.xp.asarray(x, copy=True))
