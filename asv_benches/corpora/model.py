"""The time that a corpus takes on many workers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """The constants of a model and a scheduler, measured on one machine."""

    seconds_per_text: float
    """The time of one worker with a core of its own."""
    seconds_per_part: float
    """The time of a worker for a part besides its texts: to read, to write, to be given the next."""
    seconds_per_task: float
    """The time of the one process that has scheduler and client."""
    start: float
    """Seconds before the first part begins: to describe the model and to scan the files."""


def seconds(cluster: Cluster, texts: int, part_rows: int, workers: int, *, cores: int | None = None) -> float:
    """Return the time of a corpus: the greater of what workers and scheduler take.

    Workers compute rounds of parts, and the last round is as long as any. More workers than cores take turns.
    """
    parts = math.ceil(texts / part_rows)
    rounds = math.ceil(parts / workers)
    turns = max(1.0, workers / cores) if cores else 1.0
    rows = min(part_rows, texts)
    computing = rounds * (rows * cluster.seconds_per_text * turns + cluster.seconds_per_part)
    return cluster.start + max(computing, parts * cluster.seconds_per_task)


def limit(cluster: Cluster, part_rows: int) -> float:
    """Return the number of workers at which the scheduler has no time left."""
    return (part_rows * cluster.seconds_per_text + cluster.seconds_per_part) / cluster.seconds_per_task
