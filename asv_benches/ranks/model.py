"""A model of attention over ranks: a ring step takes the greater of its block's time and its bytes / bandwidth, and latency."""

from __future__ import annotations

from dataclasses import dataclass

from .worker import BYTES_PER_POSITION


@dataclass(frozen=True)
class Machine:
    """The constants of a run."""

    seconds_per_pair: float
    """For a query and a key that attend, in all heads, while all ranks compute."""
    bandwidth: float
    """Bytes per second from a rank to the next."""
    latency: float
    """Seconds of a step in which almost nothing is sent."""


def seconds(machine: Machine, length: int, ranks: int, *, pairs: float = 1.0) -> float:
    """Return the time of a ring in which each rank computes a share ``pairs`` of all pairs of its blocks."""
    part = length / ranks
    block = part * part * pairs * machine.seconds_per_pair
    sending = BYTES_PER_POSITION * part / machine.bandwidth
    return (ranks - 1) * (max(block, sending) + machine.latency) + block


def share_of_ideal(machine: Machine, length: int, ranks: int, *, pairs: float = 1.0) -> float:
    """Return the time without any communication over that of the model."""
    ideal = length * length / ranks * pairs * machine.seconds_per_pair
    return ideal / seconds(machine, length, ranks, pairs=pairs)
