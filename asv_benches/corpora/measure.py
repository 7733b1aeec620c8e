"""Measurements of corpora: rates of one process and of workers, the scheduler's share, memory, and an empty task's time."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mha_text as mt
from mha_text.corpus import on_dask


def write_texts(path: Path, sentences: list[str], count: int) -> Path:
    """Write ``count`` texts, one in each line."""
    with path.open("w", encoding="utf-8") as file:
        for at in range(count):
            file.write(sentences[at % len(sentences)] + "\n")
    return path


def one_process(corpus: Path, out: Path, model: Path, part_rows: int, environment: dict[str, str]) -> dict[str, float]:
    """Encode in a process of its own, on all cores; return its seconds, and the CPU time of its process.

    ``environment``: from before Dask, which sets OMP_NUM_THREADS in the process that starts a cluster, too.
    """
    code = (
        "import json, sys, time, dataclasses, mha_text as mt\n"
        "corpus, out, model, part_rows = sys.argv[1:]\n"
        "report = mt.encode_corpus(None, corpus, out, model, part_rows=int(part_rows), progress=False)\n"
        "print(report.seconds, time.process_time())"
    )
    command = [sys.executable, "-c", code, str(corpus), str(out), str(model), str(part_rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    wall, cpu = map(float, done.stdout.split())
    return {"wall": wall, "cpu": cpu}


def on_cluster(client: Any, corpus: Path, out: Path, model: Path, part_rows: int) -> dict[str, float]:
    """Encode on a cluster; return the seconds, and CPU time of the workers and of this process, which has the scheduler."""
    workers = sum(client.run(time.process_time).values())
    scheduler, begun = time.process_time(), time.monotonic()
    report = mt.encode_corpus(client, corpus, out, model, part_rows=part_rows, progress=False)
    whole, scheduler = time.monotonic() - begun, time.process_time() - scheduler
    workers = sum(client.run(time.process_time).values()) - workers
    return {"wall": report.seconds, "whole": whole, "cpu": workers, "scheduler": scheduler}


def seconds_per_task(client: Any, count: int) -> dict[str, float]:
    """Return what an empty task takes: wall time, and CPU time of scheduler and client."""
    cpu, begun = time.process_time(), time.monotonic()
    assert sum(1 for _ in on_dask.run(client, divmod, 7, range(1, count + 1))) == count
    return {"wall": (time.monotonic() - begun) / count, "cpu": (time.process_time() - cpu) / count}


def memory() -> dict[str, int]:
    """Return the memory of this process in bytes: now and at its greatest, and what no other process has part in."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {name.rstrip(":"): int(size) * 1024 for name, size, _ in lines}
    return {
        "resident": sizes["Rss"],
        "private": sizes["Private_Clean"] + sizes["Private_Dirty"],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


@contextmanager
def cluster(workers: int, threads: int, dashboard: str | None) -> Iterator[Any]:
    """Yield a client of a cluster with Dask's own settings: with a profiler, and memory that is trimmed."""
    from distributed import Client, LocalCluster

    options = {"silence_logs": "CRITICAL", "dashboard_address": dashboard}
    with LocalCluster(n_workers=workers, threads_per_worker=threads, **options) as local, Client(local) as client:
        yield client


many_threads = partial(cluster, 2, 128, None)
"""256 threads, so that tasks are sent in batches, as to many workers."""
as_dask_comes = partial(cluster, threads=1, dashboard=":0")
