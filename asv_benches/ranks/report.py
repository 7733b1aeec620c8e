"""The page of a measurement of attention over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Any

import reports

from .model import Machine, seconds, share_of_ideal
from .worker import BYTES_PER_POSITION, CASES

GOALS = {("no mask", 2): 0.52, ("no mask", 4): 0.27}
TOKENS = {"128k": 2**17, "1M": 2**20, "10M": 10 * 2**20, "100M": 100 * 2**20}
RANKS = (8, 64, 256, 1024)
LINK = 12.5e9  # bytes per second of a network of 100 Gbit/s
LATENCY = 20e-6  # seconds of a message on such a network


def machine(engine: dict[str, Any], length: int, size: int) -> Machine:
    """Return the constants of a run: the time of a block while all ranks compute one, and that of shifts."""
    ranks = engine[str(size)]
    block = mean(rank["block"]["wall"] for rank in ranks)
    small, large = (mean(rank[f"shift, {name}"]["wall"] for rank in ranks) for name in ("small", "large"))
    sent = ranks[0]["shift, large"]["bytes"]
    return Machine(block / (length / size) ** 2, sent / max(large - small, 1e-9), small)


def rows(measured: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of the table: for each engine, case and number of ranks."""
    length = measured["length"]
    for name, engine in measured["engines"].items():
        for case in CASES:
            first = engine["1"][0][case]
            pairs = first["wall"] / engine["1"][0]["no mask"]["wall"]  # causal: half of the pairs, and somewhat more time
            for size in (2, 4):
                ranks = [rank[case] for rank in engine[str(size)]]
                cpu, wall = [each["cpu"] for each in ranks], max(each["wall"] for each in ranks)
                ideal = (size - 1) * BYTES_PER_POSITION * length / size
                predicted = seconds(machine(engine, length, size), length, size, pairs=pairs)
                goal = GOALS.get((case, size))
                contiguous = case == "causal, contiguous"
                yield [
                    name,
                    case,
                    str(size),
                    f"{mean(cpu) / first['cpu']:.2f}" + (f" (goal {goal})" if goal else ""),
                    f"{max(cpu) / mean(cpu):.2f}",
                    f"{wall / first['wall']:.2f}",
                    f"{mean(each['sent'] for each in ranks) / ideal:.3f}",
                    f"{mean(each['waited'] for each in ranks) / wall:.1%}",
                    f"{(size - 1) * mean(rank['shift, large']['wall'] for rank in engine[str(size)]) / wall:.1%}",
                    "" if contiguous else f"{predicted / wall:.2f}",
                ]


HEAD = [
    *("engine", "case", "ranks", "CPU time per rank / one rank's", "slowest rank / mean", "wall / one rank's"),
    *("bytes sent / all keys and values", "waiting", "messages alone", "model / wall"),
]


def lines(measured: dict[str, Any]) -> list[str]:
    """Return the tables in Markdown."""
    table = [reports.table(HEAD, rows(measured)), ""]
    for name, engine in measured["engines"].items():
        for size in (2, 4):
            constants = machine(engine, measured["length"], size)
            table.append(
                f"- {name}, {size} ranks: {constants.seconds_per_pair * 1e9:.2f} ns for a pair of query and key in 8 heads, "
                f"{constants.bandwidth / 1e9:.2f} GB/s from each process to the next, {constants.latency * 1e6:.0f} us for a "
                "small message"
            )
    return table


def page(measured: dict[str, Any]) -> str:
    """Return the page."""
    first = next(iter(measured["engines"].values()))
    network = Machine(machine(first, measured["length"], 2).seconds_per_pair, LINK, LATENCY)
    predicted = ((ranks, *(_predicted(network, tokens, ranks) for tokens in TOKENS.values())) for ranks in RANKS)
    text = TEXT.format(
        **measured,
        measured="\n".join(lines(measured)),
        link=f"{LINK * 8 / 1e9:.0f} Gbit/s and {LATENCY * 1e6:.0f} us",
        predicted=reports.table(["ranks", *TOKENS], predicted),
    )
    return reports.page("Many processes, measured", reports.measured_on(measured, "make bench-ranks"), text)


def _predicted(network: Machine, tokens: int, ranks: int) -> str:
    share = share_of_ideal(network, tokens, ranks, pairs=0.5)
    return f"{reports.long_duration(seconds(network, tokens, ranks, pairs=0.5))} ({share:.0%})"


TEXT = """\
Attention of {length} tokens in 8 heads of 64, float32, by `ring_attention`, on a machine of {cores} cores; each rank has one
thread. `make bench-ranks` writes this page. Medians of {rounds} rounds; every answer was checked against one process before it
was timed. CPU time includes what the engine takes. With 4 ranks on fewer cores processes take turns: see the wall time.

{measured}

Bytes are compared with those of all keys and values that are not a rank's own, the least that a ring without a mask can send.
Waiting is the share of the wall time in which a rank waits for arrays, or starts to send them; "messages alone" is what all
messages of a ring would take while nothing is computed. Where waiting is less, that part of them is hidden behind computing;
where it is more, ranks waited for each other, or messages moved only while they did. The last column is what the model below
says, over what was measured.

## A model

A step takes the greater of the time of its block and of its bytes over the bandwidth, and the latency of a message. The
constants are those above: the time of a block while all ranks compute one, and that of messages while none computes; a causal
block takes the share of a whole one that it takes on one rank. From it, causal attention of one layer over hosts that each
compute as fast as one rank here, with a network of {link}, which was not measured; in brackets the share of the time in which
ranks compute:

{predicted}
"""
