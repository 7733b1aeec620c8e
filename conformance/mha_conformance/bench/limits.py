"""Peak rates of the machine for matrix products and copies.

Products are float32; both use all cores and the fastest installed library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plain_numpy import PLAIN
from .rounds import Effort
from .timing import Work, calibrated, loaded, on
from .worker import Start, Worker, WorkerFailed

MATRIX, COPY = "matrix rate", "copy bandwidth"
SIZE = 2048  # rows and columns: large enough to reach the full rate
BYTES = 2**28  # size of the array that is copied, far larger than any cache
HOST = 1
"""Device type of a CPU in the array API's ``__dlpack_device__``."""


@dataclass(frozen=True)
class Limit:
    """Least amount of work that a problem needs."""

    kind: str
    """MATRIX or COPY."""
    amount: float
    """Floating-point operations for MATRIX; bytes for COPY."""


def measured(
    backends: Sequence[str], effort: Effort, kinds: Collection[str] = (MATRIX, COPY), start: Start = Worker
) -> dict[str, dict[str, float]]:
    """Return for each backend operations per second (MATRIX) and bytes read and written per second (COPY).

    A rate is the best of all backends whose arrays are on the same kind of device; on the host, NumPy itself is measured too. A
    rate that cannot be measured is left out: a backend whose arrays lack ``__dlpack_device__`` has no limits.
    """
    devices = {}
    for name in backends:
        with start(name, device, name) as asked, suppress(WorkerFailed):
            devices[name] = int(asked.answer())
    builds: dict[str, tuple[float, Callable[[], Work], tuple[Callable[[str], Work], ...]]] = {
        MATRIX: (2.0 * SIZE**3, numpy_product, (product, linear)),
        COPY: (2.0 * BYTES, numpy_copy, (copy,)),
    }
    best: dict[tuple[str, int], float] = {}
    for kind, (amount, host, of_backend) in builds.items():
        if kind not in kinds:
            continue
        works = [(PLAIN, HOST, host, ()), *((name, at, build, (name,)) for name, at in devices.items() for build in of_backend)]
        for name, at, build, arguments in works:
            with start(name, build, *arguments) as worker:
                best[kind, at] = max(best.get((kind, at), 0.0), amount / _seconds(worker, effort))
    return {name: {kind: best[kind, at] for kind in builds if best.get((kind, at))} for name, at in devices.items()}


def _seconds(worker: Worker, effort: Effort) -> float:
    """Return the shortest time of a call; infinity if it fails. The first call loads and compiles, and is not timed."""
    try:
        worker.time(1)
        calls = calibrated(worker.time, effort.sample)
        return min(worker.time(calls) for _ in range(effort.rounds)) / calls
    except WorkerFailed:
        return math.inf


def device(backend: str) -> Work:
    """Return work whose answer is the type of a backend's default device."""
    library = loaded(backend)
    kind, _ = library.from_numpy(np.zeros(1, dtype=np.float32)).__dlpack_device__()
    return Work(lambda: kind, lambda number: number)


def _square() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)


def numpy_product() -> Work:
    """Return a matrix product in NumPy."""
    x, out = _square(), np.empty((SIZE, SIZE), dtype=np.float32)
    return Work(lambda: np.matmul(x, x, out=out), lambda y: y)


def product(backend: str) -> Work:
    """Return a matrix product by the backend's ``matmul``."""
    library = loaded(backend)
    x = library.from_numpy(_square())
    return on(library, lambda: library.xp.matmul(x, x))


def linear(backend: str) -> Work:
    """Return a matrix product by ``mha_core.linear``, which may use a faster library than the backend's ``matmul`` does."""
    import mha_core as mha

    library = loaded(backend)
    x = library.from_numpy(_square())
    return on(library, lambda: mha.linear(x, x))


def numpy_copy() -> Work:
    """Return a copy in NumPy."""
    x, y = np.ones(BYTES // 4, dtype=np.float32), np.zeros(BYTES // 4, dtype=np.float32)
    return Work(lambda: np.copyto(y, x), lambda _: y)


def copy(backend: str) -> Work:
    """Return a copy into a new array: not every library can write into an existing one."""
    library = loaded(backend)
    x: Any = library.from_numpy(np.ones(BYTES // 4, dtype=np.float32))
    return on(library, lambda: library.xp.asarray(x, copy=True))
