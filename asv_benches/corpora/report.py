"""The page of a measurement of corpora on Dask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import reports

from .model import Cluster, limit, seconds

TEXTS = 10**9
PARTS = (512, 2048, 8192, 32768)
WORKERS = (1, 10, 100, 1000, 10_000)


def constants(results: dict[str, Any]) -> Cluster:
    """Return the constants of the model, from one worker and from empty tasks."""
    one, per_task = results["times"]["1 workers"], results["task"]
    parts = -(-results["texts"] // results["part_rows"])
    return Cluster(
        seconds_per_text=one["cpu"] / results["texts"],
        seconds_per_part=max(0.0, one["wall"] - one["cpu"]) / parts,
        seconds_per_task=per_task["cpu"],
        start=0.0,
    )


def rows(results: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what was measured, for each way to encode."""
    cluster, base = constants(results), results["times"]["one process"]["wall"]
    for kind, times in results["times"].items():
        size = int(kind.split()[0]) if kind[0].isdigit() else 0
        predicted = seconds(cluster, results["texts"], results["part_rows"], size, cores=results["cores"]) if size else 0.0
        yield [
            kind.replace("1 workers", "1 worker"),
            f"{results['texts'] / times['wall']:.0f}",
            f"{base / times['wall']:.2f}",
            f"{times['scheduler'] / (times['cpu'] + times['scheduler']):.1%}" if size else "",
            f"{predicted / times['wall']:.2f}" if size and "comes" not in kind else "",
        ]


HEAD = ["", "texts/s", "rate / one process's", "CPU time of scheduler and client", "model / measured"]


def lines(results: dict[str, Any]) -> list[str]:
    """Return the tables in Markdown."""
    cluster = constants(results)
    parts = [reports.table(HEAD, rows(results)), ""]
    ratios = ", ".join(f"{ratio:.2f}" for ratio in sorted(results["ratios"]))
    parts.append(
        f"- Two workers over one process, round by round: {ratios}; median {median(results['ratios']):.2f} (goal 0.97)."
    )
    parts.append(
        f"- An empty task, in batches for 256 threads: {results['task']['wall'] * 1e3:.2f} ms, of which scheduler and client "
        f"compute {results['task']['cpu'] * 1e3:.2f} ms: {1 / results['task']['cpu']:.0f} tasks a second at most."
    )
    parts.append(f"- A text: {cluster.seconds_per_text * 1e3:.2f} ms of one core.")
    private, resident, peak = (results["memory"]["MiniLM"][name] / 1e6 for name in ("private", "resident", "peak"))
    parts.append(
        f"- Memory of a worker with MiniLM: {private:.0f} MB of its own (goal 200 MB); {resident:.0f} MB with the weights and "
        f"libraries, which workers of one machine share, and {peak:.0f} MB at most."
    )
    for count, sizes in results["memory"].get("flat", {}).items():
        parts.append(
            f"- After {int(count):,} texts with a model of two small layers: a worker has {sizes['worker'] / 1e6:.0f} MB, "
            f"scheduler and client {sizes['client'] / 1e6:.0f} MB."
        )
    return parts


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    cluster = constants(results)
    heading = ["rows of a part", *(f"{workers:,} worker{'s' * (workers > 1)}" for workers in WORKERS), "the scheduler's limit"]
    times = (
        [
            f"{part_rows:,}",
            *(reports.long_duration(seconds(cluster, TEXTS, part_rows, workers)) for workers in WORKERS),
            f"{limit(cluster, part_rows):,.0f} workers",
        ]
        for part_rows in PARTS
    )
    advice = " ".join(_advice(cluster, workers) for workers in WORKERS[-2:])
    text = TEXT.format(**results, measured="\n".join(lines(results)), predicted=reports.table(heading, times), advice=advice)
    return reports.page("Corpora, measured", reports.measured_on(results, "make bench-corpora"), text)


def _advice(cluster: Cluster, workers: int) -> str:
    """Return which parts to choose for a number of workers, and what is the limit then."""
    times = {part_rows: seconds(cluster, TEXTS, part_rows, workers) for part_rows in PARTS}
    good = [f"{part_rows:,}" for part_rows, time in times.items() if time < 1.05 * min(times.values())]
    busy = [f"{part_rows:,}" for part_rows in PARTS if limit(cluster, part_rows) < workers]
    which = f"the scheduler is the limit for parts of {' and '.join(busy)} rows" if busy else "the workers are the limit"
    return f"With {workers:,} workers {which}; within 5% of the best are parts of {', '.join(good)} rows."


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw texts per second over workers, for each size of a part."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    cluster = constants(results)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    workers = [round(10 ** (at / 8)) for at in range(41)]
    for part_rows in PARTS:
        rates = [TEXTS / seconds(cluster, TEXTS, part_rows, each) for each in workers]
        axes.loglog(workers, rates, label=f"{part_rows:,} rows in a part")
    for size in (1, 2):
        rate = results["texts"] / results["times"][f"{size} workers"]["wall"]
        axes.plot([size], [rate], "ko", label="measured" if size == 1 else None)
    axes.set(xlabel="workers of one core", ylabel="texts per second", title="MiniLM: the model, and what was measured")
    axes.grid(alpha=0.3)
    axes.legend()
    with rc_context({"svg.hashsalt": "corpora"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})


TEXT = """\
{texts} sentences with all-MiniLM-L6-v2 on NumPy, in parts of {part_rows} rows, on a machine of {cores} cores.
`make bench-corpora` writes this page. Medians of {rounds} rounds, in which all ways take turns. One process has as many
threads as there are cores, and all of them work; each worker has one. "As Dask comes" is with Dask's own settings;
`mha encode --workers` turns its profiler off and its clocks down, and keeps memory that the next product needs.

{measured}

A cluster starts anew in each round, and each worker has read the model before it is timed. Four workers take turns on
two cores. The model takes the time of one worker, and that of {tasks} empty tasks.

## A billion sentences

The time of a corpus is the greater of what its workers and its scheduler take. A worker takes the time of its texts; the
scheduler takes the time of a task for each part, however large the part is. So parts of more rows let more workers work, and
cost more if a worker is lost, and at the end, when workers wait for the last part. For 10^9 sentences like these, on workers
that each compute as fast as one core here, with files that all can read and write fast enough, which was not measured:

{predicted}

![Texts per second over workers, for parts of several sizes](corpora-measured.svg)

{advice} The default, `part_rows=None`, is 8192 rows for a corpus of this size.
"""
