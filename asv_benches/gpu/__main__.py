"""The command ``python -m gpu``: test conformance on a GPU, time mha-core against torch, write both down.

Exit codes: 0 done, whether or not the goals are met; 1 something failed or is wrong, or there is no GPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import mha_core as mha
import reports
from mha_conformance.bench.machine import processor

from . import report
from .cases import CASES, REHEARSAL
from .measure import limits, measured, verdicts
from .target import Target, gpu, host

ROOT = Path(__file__).parent.parent.parent
JUDGED = (
    ("cupy", None, ROOT / "backends" / "mha_cupy" / "certificates"),
    ("torch", "cuda:0", ROOT / "backends" / "mha_torch" / "certificates"),
)
console = Console(soft_wrap=True, highlight=False)


def main(
    *,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for gpu.json and gpu.md.")] = ROOT / "docs",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per case.")] = 15,
    conformance: Annotated[bool, typer.Option(help="Test conformance first, and write the certificates.")] = True,
    rehearse: Annotated[bool, typer.Option(help="Small problems on the CPU, with NumPy in place of CuPy.")] = False,
) -> None:
    """Test conformance on a CUDA GPU and time mha-core against torch."""
    try:
        target = host() if rehearse else gpu()
    except (mha.BackendUnavailable, RuntimeError) as error:
        console.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(1) from error
    judged = JUDGED if conformance and not rehearse else ()
    wrong = [f"{name} failed conformance" for name, device, folder in judged if not _judge(name, device, folder)]
    best, rows, judged_goals = limits(target), [], []
    cases = REHEARSAL if rehearse else CASES
    for case in cases:
        timed = measured(case, target, rounds)
        rows += timed
        judged_goals += verdicts(case, timed, best)
        console.print(*(f"{case.name}: {row.contender}: {row.wrong or f'{row.median:.3g} s'}" for row in timed), sep="\n")
        results = report.record(rows, judged_goals, best, _head(target))
        reports.write(output / "gpu", results, report.page(results, cases))  # after each case: the next one may crash
    console.print(f"{output / 'gpu.json'} and {output / 'gpu.md'} were written")
    wrong += [f"{row.case}, {row.contender}: {row.wrong}" for row in rows if row.wrong]
    if wrong:
        console.print(*(f"[red]error:[/red] {escape(line)}" for line in wrong), sep="\n")
        raise typer.Exit(1)


def _judge(name: str, device: str | None, folder: Path) -> bool:
    """Write the certificate of a backend; return True if it passes the conformance suite."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["conform", name, "--report", str(folder), "--processes", str(min(16, processor()["cores"]))]
    words += ["--device", device] if device else []
    return subprocess.run([sys.executable, "-m", "mha_core", *words], check=False).returncode == 0


def _head(target: Target) -> dict[str, Any]:
    import torch

    origin = reports.origin()
    card = "host" if target.is_rehearsal else torch.cuda.get_device_name(0)
    libraries = dict(target.arrays.record.versions()) if target.arrays.record.versions else {}
    return {"rehearsal": target.is_rehearsal, "card": card, **origin, "versions": origin["versions"] | libraries}


if __name__ == "__main__":
    typer.run(main)
