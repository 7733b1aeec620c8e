"""One rank of a measurement, started by ``python -m ranks.worker '{...}'``; rank 0 prints the results of all."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mha_core as mha
from mha_core import distributed
from mha_core.distributed.engine import Engine, engine_of

HEADS, DIM = 8, 64
BYTES_PER_POSITION = 2 * HEADS * DIM * 4  # of a key and a value in float32
CASES: dict[str, tuple[str, Any]] = {
    "no mask": ("contiguous", None),
    "causal, zigzag": ("zigzag", mha.causal()),
    "causal, contiguous": ("contiguous", mha.causal()),
}


class Timed:
    """An engine that adds up the bytes it sends, and the seconds it waits for arrays."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rank, self.size = engine, engine.rank, engine.size
        self.all_gather, self.all_to_all = engine.all_gather, engine.all_to_all
        self.all_gather_text = engine.all_gather_text
        self.sent, self.waited = 0, 0.0

    def shift(self, arrays: Any, like: Any) -> Callable[[], Any]:
        self.sent += sum(x.nbytes for x in arrays)
        start = time.perf_counter()
        receive = self.engine.shift(arrays, like)
        self.waited += time.perf_counter() - start

        def wait() -> Any:
            start = time.perf_counter()
            received = receive()
            self.waited += time.perf_counter() - start
            return received

        return wait


def group_of(setting: dict[str, Any]) -> Any:
    """Return the group that a rank belongs to."""
    if setting["engine"] == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"file://{setting['store']}"
    dist.init_process_group("gloo", init_method=where, rank=setting["rank"], world_size=setting["size"])
    return dist.group.WORLD


def arrays(backend: str, length: int) -> list[Any]:
    import numpy

    random = numpy.random.default_rng(0)
    drawn = [random.normal(size=(1, HEADS, length, DIM)).astype(numpy.float32) for _ in range(3)]
    if backend == "torch":
        import torch

        return [torch.from_numpy(x) for x in drawn]
    return drawn


def timed(engine: Engine, function: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return medians of seconds: of the wall, and of this process's processors."""
    walls, cpus = [], []
    for _ in range(rounds + 1):
        engine.all_gather_text("start")
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": median(walls[1:]), "cpu": median(cpus[1:])}


def measured(engine: Any, backend: str, length: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the measurements of this rank by case; each answer is checked against one process first."""
    engine, figures = Timed(engine), {}
    whole = arrays(backend, length)
    for name, (layout, mask) in CASES.items():
        parts = [distributed.shard(x, layout, group=engine) for x in whole]

        def attend(parts: Any = parts, layout: str = layout, mask: Any = mask) -> Any:
            return distributed.ring_attention(*parts, group=engine, layout=layout, mask=mask).out

        exact = mha.scaled_dot_product_attention(*whole, mask=mask)
        error = abs(attend() - distributed.shard(exact, layout, group=engine)).max()
        assert error < 1e-5, f"{name}: the result is off by {error}"
        engine.sent, engine.waited = 0, 0.0
        figures[name] = timed(engine, attend, rounds)
        figures[name] |= {"sent": engine.sent / (rounds + 1), "waited": engine.waited / (rounds + 1)}
    figures["block"] = timed(engine, lambda: mha.attention_state(*parts), rounds)
    for name, x in (("small", parts[1][..., :1, :]), ("large", parts[1])) if engine.size > 1 else ():
        both = [x, x]

        def send(both: Any = both) -> None:
            engine.shift(both, [(tuple(x.shape), x) for x in both])()

        figures[f"shift, {name}"] = {**timed(engine, send, rounds), "bytes": sum(x.nbytes for x in both)}
    return figures


def main(setting: dict[str, Any]) -> None:
    mha.set_num_threads(1)
    _print(engine_of(group_of(setting)), setting)
    if setting["engine"] != "mpi":
        sys.modules["torch"].distributed.destroy_process_group()  # nothing may hold the group any more


def _print(engine: Engine, setting: dict[str, Any]) -> None:
    figures = measured(engine, setting["backend"], setting["length"], setting["rounds"])
    texts = engine.all_gather_text(json.dumps(figures))
    if engine.rank == 0:
        print(json.dumps([json.loads(text) for text in texts]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
