"""Tasks on a Dask cluster, and a cluster on this machine. Dask schedules, retries and moves data; nothing here does."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from .errors import CorpusError

_AHEAD = 2
"""Tasks for each thread that the scheduler knows of: one runs, and the next is there when it ends. So the memory of scheduler
and client does not grow with the corpus."""
_NO_WORKERS = 60
"""Seconds without any worker after which a run ends; a lost one starts again within a few."""
_LONG = "1h"
"""The cluster would end a nanny so long after it lost a worker, even while it starts the next one."""
_LARGEST_IN_HEAP = 1 << 25
"""Bytes, the most that glibc accepts (mallopt(3)); larger arrays are returned to the system as soon as they are freed."""
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
"""The setting of variables that workers find in their environment."""
_SECONDS = 1.0
"""The time after which the scheduler is asked again for the number of threads: a cluster may grow or shrink."""


def run(client: Any, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``function(shared, item)`` for each item, as the cluster completes them.

    Raises the exception of a task, after which no other begins, and CorpusError if the cluster fails.
    """
    from distributed import KilledWorker, as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import NoWorkerError

    context = client.submit(_itself, shared, pure=False)  # a task, so that it is computed again if all who have it are lost
    running, address = set(), client.scheduler.address
    completed = as_completed(loop=client.loop)
    remaining = iter(items)

    def begin(count: int) -> None:
        batch = list(islice(remaining, count))
        futures = client.map(function, [context] * len(batch), batch, pure=False)
        running.update(futures)
        completed.update(futures)

    try:
        enough, threads, asked = 0, 0, -math.inf
        while True:
            if len(running) <= enough or not running:
                if time.monotonic() - asked > _SECONDS:
                    threads, asked = _threads(client, address), time.monotonic()
                before = len(running)
                begin(max(0, _AHEAD * threads - before))
                enough = threads * (_AHEAD + 1) // 2 if len(running) > before else 0
            if not running:
                break
            future = next(completed)
            running.discard(future)
            yield future.result()
    except KilledWorker as error:
        raise CorpusError(
            f"a worker was lost {error.allowed_failures + 1} times while it encoded the same part, such as for lack of memory: "
            "give workers more, or parts fewer rows"
        ) from error
    except NoWorkerError as error:
        raise CorpusError(
            f"no worker has been left for {error.timeout:.0f} s: what is written stays; run the same again to go on"
        ) from error
    except FutureCancelledError as error:
        raise _gave_up(address, error.reason) from error
    finally:
        if client.status == "running":
            client.cancel([*running, context], force=True)


def _itself(shared: Any) -> Any:
    return shared


def _threads(client: Any, address: str) -> int:
    """Return the number of threads of all workers, at least 1; none is known while the connection to the scheduler is lost."""
    try:
        return max(1, sum(client.nthreads().values())) if client.status == "running" else 1
    except OSError as error:  # the scheduler died after it had answered last
        raise _gave_up(address, error) from error


def _gave_up(address: str, reason: object) -> CorpusError:
    return CorpusError(f"the scheduler at {address} gave up ({reason}): what is written stays; run the same again to go on")


@contextmanager
def connected(*, workers: int | None = None, scheduler: str | None = None, port: int = 8787) -> Iterator[Any]:
    """Yield a client of a scheduler, or of a cluster of ``workers`` processes of one thread on this machine.

    ``port``: of the dashboard of such a cluster, or any other if it is taken.

    Raises ModuleNotFoundError without Dask, and CorpusError if there is no such scheduler.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ModuleNotFoundError as missing:
        if missing.name not in ("dask", "distributed"):
            raise
        raise ModuleNotFoundError(
            f"workers need {missing.name}, which is not installed: pip install 'mha-text[dask]'", name=missing.name
        ) from missing
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it logs what it also raises
    if scheduler is not None:
        try:
            client = Client(scheduler)
        except (OSError, ValueError, TypeError, RuntimeError) as cause:
            raise CorpusError(f"no scheduler answers at {scheduler}: {cause}") from cause
        with client:
            yield client
        return
    settings = _settings(dask)
    with dask.config.set(settings), _unchanged(settings[_ENVIRONMENT]), ExitStack() as stack:
        with warnings.catch_warnings():  # Dask then takes another port, which the dashboard's address shows
            warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use", UserWarning)
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=workers, threads_per_worker=1, silence_logs="CRITICAL", dashboard_address=f"127.0.0.1:{port}"
                )
            )
        yield stack.enter_context(Client(cluster))


@contextmanager
def _unchanged(names: Iterable[str]) -> Iterator[None]:
    """Restore environment variables at the end: Dask sets here too what its workers shall find, such as one thread."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _settings(dask: Any) -> dict[str, Any]:
    """Return settings for workers that compute in long calls; docs/decisions/corpora.md says what Dask's own cost.

    Dask looks at its processes up to 100 times a second, and tells glibc to return memory that the next product takes again.
    """
    preload = "distributed.worker.preload"
    return {
        "distributed.scheduler.no-workers-timeout": f"{_NO_WORKERS}s",
        "distributed.deploy.lost-worker-timeout": _LONG,
        "distributed.worker.profile.enabled": False,
        "distributed.worker.memory.monitor-interval": "1s",
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.tick.cycle": "10s",
        "distributed.admin.system-monitor.interval": "5s",
        preload: [*dask.config.get(preload), f"{__package__}.preload"],
        _ENVIRONMENT: dask.config.get(_ENVIRONMENT)
        | {"MALLOC_MMAP_THRESHOLD_": _LARGEST_IN_HEAP, "MALLOC_TRIM_THRESHOLD_": 1 << 28},
    }
