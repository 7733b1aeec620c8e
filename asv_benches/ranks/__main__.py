"""The command ``python -m ranks``: time attention over 1, 2 and 4 ranks on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.console import Console

import reports

from .report import lines, page

SIZES = (1, 2, 4)
ENGINES = {"mpi": "numpy", "torch.distributed": "torch"}


def main(
    *,
    length: Annotated[int, typer.Option(min=64, help="Tokens of the whole sequence.")] = 8192,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each case, of which the median counts.")] = 5,
    report: Annotated[Path | None, typer.Option(metavar="STEM", help="Write STEM.md and STEM.json.")] = None,
) -> None:
    """Time attention over ranks, each with one thread: processor time, bytes, waiting, and what a model predicts."""
    log = Console(stderr=True)
    reports.untuned(log)
    engines: dict[str, dict[str, Any]] = {engine: {} for engine in ENGINES}
    for size in SIZES:  # in turns, so that both engines and all sizes see the same machine
        for engine, backend in ENGINES.items():
            log.print(f"{engine}, {backend}, {size} ranks", highlight=False)
            engines[engine][str(size)] = _run(engine, backend, size, length, rounds)
    measured = reports.origin() | {"length": length, "rounds": rounds, "cores": os.cpu_count(), "engines": engines}
    Console(width=110, highlight=False, markup=False).print("\n".join(lines(measured)))
    if report is not None:
        reports.write(report, measured, page(measured))


def _run(engine: str, backend: str, size: int, length: int, rounds: int) -> list[dict[str, Any]]:
    setting: dict[str, Any] = {"engine": engine, "backend": backend, "size": size, "length": length, "rounds": rounds}
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
    worker = [sys.executable, "-m", "ranks.worker"]
    with tempfile.TemporaryDirectory() as folder:
        setting["store"] = str(Path(folder) / "store")
        if engine == "mpi":
            mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
            if mpiexec is None:
                raise SystemExit("mpiexec is not installed: pip install mpich mpi4py")
            commands = [[mpiexec, "-n", str(size), *worker, json.dumps(setting)]]
        else:
            commands = [[*worker, json.dumps({**setting, "rank": rank})] for rank in range(size)]
        started = [subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, text=True) for each in commands]
        outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{engine} with {size} ranks failed")
    ranks: list[dict[str, Any]] = json.loads(outputs[0])
    assert len(ranks) == size and mean(rank["no mask"]["wall"] for rank in ranks) > 0
    return ranks


if __name__ == "__main__":
    typer.run(main)
