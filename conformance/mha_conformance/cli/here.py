"""``mha bench --here``: what kernels of other distributions bring on this machine, measured in a few seconds."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from mha_core.cli.tables import prose_console, table
from mha_core.shared import known

from ..bench import plugins
from ..bench.attention import Attention
from ..bench.compare import Contender, compare
from ..bench.limits import MATRIX, measured
from ..bench.rounds import QUICK, Effort, ratio
from ..bench.timing import duration
from ..bench.worker import Crew
from . import bench
from .bench import Results, Row, Watch

OP, CASE, PROBLEM = "attention", "attention 8x8x512x64", Attention(8, 8, 512, 64)
EFFORT = Effort(rounds=7, seconds=1.0, least=2, processes=1)


@dataclass(frozen=True)
class Gain:
    """What the kernels of a distribution bring to a backend on this machine."""

    distribution: str
    backend: str
    installed: bool
    ratio: float | None
    """Time with these kernels, divided by the time without: an estimate if they are not installed, None if there is none."""


@dataclass(frozen=True)
class Here(Results):
    """The times of one attention, with and without the kernels of each distribution, and what these bring."""

    gains: list[Gain]


def run(backends: Sequence[str], watch: Watch) -> Here:
    """Time attention on each backend, with and without the kernels of other distributions; then measure the product rate.

    Raises UnknownBackend, and BackendUnavailable if a requested backend or all backends cannot be used.
    """
    names, notes = bench.usable(backends)
    notes += bench.conditions()
    left_out = {
        f"{name} without {each}" if each else name: (name, each)
        for name in names
        for each in ("", *plugins.distributions(name, OP))
    }
    contenders = [Contender(title, plugins.without, (PROBLEM, *each)) for title, each in left_out.items()]
    with Crew() as crew:
        watch(CASE, 0, 2, [])
        compared = compare(PROBLEM, None, contenders, EFFORT, crew.worker)
        watch("the product rate of this machine", 1, 2, [])
        limits = measured(names, QUICK, [MATRIX], crew.worker)
    times, rows = compared.seconds, []
    for title, (name, _) in left_out.items():
        seconds, rate = statistics.median(times[title]) if title in times else None, limits.get(name, {}).get(MATRIX)
        reached = PROBLEM.limit.amount / seconds / rate if seconds and rate else None
        rows.append(Row(CASE, title, seconds, reached=reached, of=MATRIX, wrong=compared.wrong.get(title, "")))
    timed = {each: times[title] for title, each in left_out.items() if title in times}
    return Here(rows, limits, notes, list(gains(timed, limits)))


def gains(times: Mapping[tuple[str, str], Sequence[float]], limits: Mapping[str, Mapping[str, float]]) -> Iterator[Gain]:
    """Yield what each distribution brings to each backend: by the times if it is installed, otherwise by an estimate.

    ``times`` are seconds by backend and the distribution that is left out, or "". The estimate takes it to reach the share of
    the product rate that it reached where it was measured. There is none for other processors.
    """
    for (backend, distribution), seconds in times.items():
        if distribution and (backend, "") in times:
            yield Gain(distribution, backend, True, ratio(times[backend, ""], seconds).median)
        for name in known.absent(backend, OP) if not distribution else ():
            entry, rate = known.distributions()[name], limits.get(backend, {}).get(MATRIX, 0.0)
            reached = entry["reached"].get(backend, 0.0) * rate if platform.machine() in entry["measured_on"] else 0.0
            now = statistics.median(seconds)
            yield Gain(name, backend, False, PROBLEM.limit.amount / reached / now if reached else None)


def sentences(gains: Sequence[Gain]) -> Iterator[str]:
    """Yield a sentence for each distribution: what it brings; or what it would bring, and how to install it."""
    for name, installed in dict.fromkeys((each.distribution, each.installed) for each in gains):
        own = [each for each in gains if each.distribution == name]
        rated = [each for each in own if each.ratio is not None]
        if installed:
            yield f"{name} takes {_times(rated, '.2f')} takes without it"
            continue
        reached, said = known.distributions()[name]["reached"], []
        if rated:
            shares = ", ".join(f"{reached[each.backend]:.0%} on {each.backend}" for each in rated)
            said.append(
                f"would take about {_times(rated, '.1g')} takes now, by an estimate from the product rate measured here and "
                f"the least share of it in docs/peers.md ({shares})"
            )
        if unknown := [each.backend for each in own if each.ratio is None]:
            said.append(f"has kernels for {' and '.join(unknown)}, for which there is no estimate on this machine")
        yield f"{name}, which is not installed, {', and '.join(said)}: {known.install(name)}"


def _times(gains: Sequence[Gain], digits: str) -> str:
    return " and ".join(f"{each.ratio:{digits}} of the time that {each.backend}" for each in gains)


def show(results: Here) -> None:
    """Print the table, what its figures mean, and a sentence for each distribution."""
    bench.show(results, _table)
    for line in sentences(results.gains):
        prose_console().print(Text(line))


def _table(console: Console, rows: Sequence[Row]) -> RenderableType:
    cells = [
        (
            Text(row.backend),
            Text(duration(row.seconds) if row.seconds else "wrong"),
            Text(f"{PROBLEM.limit.amount / row.seconds / 1e9:.0f}" if row.seconds else ""),
            Text(f"{row.reached:.0%}" if row.reached else ""),
        )
        for row in rows
    ]
    return table(console, (CASE, "time per call", "GFLOP/s", "of the product rate"), cells, right=True)
