"""Tasks on a Dask cluster, and a cluster on this machine. Dask schedules, retries and moves data; nothing here does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from .errors import CorpusError

_AHEAD = 2
"""Tasks for each thread that the scheduler knows of: one runs, and the next is there when it ends. So the memory of scheduler
and client does not grow with the corpus."""


def run(client: Any, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``function(shared, item)`` for each item, as the cluster completes them.

    Raises the exception of a task, after which no other begins, and CorpusError if the cluster fails.
    """
    from distributed import KilledWorker, as_completed
    from distributed.client import FutureCancelledError

    context = client.submit(_itself, shared, pure=False)  # a task, so that it is computed again if all who have it are lost
    running = set()
    completed = as_completed(loop=client.loop)
    rest = iter(items)

    def begin(count: int) -> None:
        for item in islice(rest, count):
            future = client.submit(function, context, item, pure=False)
            running.add(future)
            completed.add(future)

    try:
        begin(_AHEAD * _threads(client))
        since = 0
        while running:
            future = next(completed)
            running.discard(future)
            begin(1)
            yield future.result()
            since += 1
            if since > len(running):  # a cluster may grow
                begin(_AHEAD * _threads(client) - len(running))
                since = 0
    except KilledWorker as error:
        raise CorpusError(
            f"a worker was lost {error.allowed_failures + 1} times while it encoded the same part, such as for lack of memory: "
            "give workers more, or parts fewer rows"
        ) from error
    except FutureCancelledError as error:
        raise CorpusError(f"the scheduler at {client.scheduler.address} stopped: {error.reason}") from error
    finally:
        if client.status == "running":
            client.cancel([*running, context], force=True)


def _itself(shared: Any) -> Any:
    return shared


def _threads(client: Any) -> int:
    """Return how many threads all workers have, at least 1."""
    return max(1, sum(client.nthreads().values()))


def number_of_workers(client: Any) -> int:
    """Return how many workers a cluster has."""
    return len(client.nthreads())


@contextmanager
def connected(*, workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """Yield a client of a scheduler, or of a cluster of ``workers`` processes of one thread on this machine.

    Raises ModuleNotFoundError without Dask, and CorpusError if there is no such scheduler.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ModuleNotFoundError as missing:
        if missing.name not in ("dask", "distributed"):
            raise
        raise ModuleNotFoundError(
            f"workers need {missing.name}, which is not installed: pip install 'mha-core[dask]'", name=missing.name
        ) from missing
    if scheduler is not None:
        try:
            client = Client(scheduler)
        except (OSError, ValueError, TypeError, RuntimeError) as cause:
            raise CorpusError(f"no scheduler answers at {scheduler}: {cause}") from cause
        with client:
            yield client
        return
    with (
        dask.config.set(_settings(dask)),
        LocalCluster(n_workers=workers, threads_per_worker=1, silence_logs="ERROR") as cluster,
        Client(cluster) as client,
    ):
        yield client


def _settings(dask: Any) -> dict[str, Any]:
    """Return settings for workers that compute in long calls.

    The profiler of Dask interrupts a worker 100 times a second, and glibc, told to trim, returns memory to the system that the
    next product takes again: see docs/corpus.md for what they take.
    """
    name = "distributed.nanny.pre-spawn-environ"
    environment = {key: value for key, value in dask.config.get(name).items() if key != "MALLOC_TRIM_THRESHOLD_"}
    return {"distributed.worker.profile.enabled": False, name: environment}
