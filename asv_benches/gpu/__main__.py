"""``python -m gpu``: conformance of CuPy and of torch on CUDA, then timings beside torch, and both written down.

Exit codes: 0 done, whatever the goals say; 1 something is wrong, or there is no GPU.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import mha_core as mha
from mha_core.bench.machine import versions

from . import report
from .cases import CASES, REHEARSAL
from .measure import limits, measured, verdicts
from .target import Target, gpu, host

ROOT = Path(__file__).parent.parent.parent
JUDGED = (("cupy", None, ROOT / "backends" / "mha_cupy" / "certificates"), ("torch", "cuda:0", ROOT / "docs" / "certificates"))
console = Console(soft_wrap=True, highlight=False)


def main(
    *,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where gpu.json and gpu.md go.")] = ROOT / "docs",
    rounds: Annotated[int, typer.Option(min=2)] = 15,
    conformance: Annotated[bool, typer.Option(help="Judge before timing, and write the certificates.")] = True,
    rehearse: Annotated[
        bool, typer.Option(help="The same on the host, with small problems: NumPy in the place of CuPy.")
    ] = False,
) -> None:
    """Judge and time what runs on a CUDA card."""
    try:
        target = host() if rehearse else gpu()
    except (mha.BackendUnavailable, RuntimeError) as error:
        console.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(1) from error
    failed = (
        [] if rehearse or not conformance else [name for name, device, folder in JUDGED if not _judge(name, device, folder)]
    )
    best, rows, found = limits(target), [], []
    cases = REHEARSAL if rehearse else CASES
    for case in cases:
        timed = measured(case, target, rounds)
        rows += timed
        found += verdicts(case, timed, best)
        console.print(*(f"{case.name}: {row.contender}: {row.wrong or f'{row.median:.3g} s'}" for row in timed), sep="\n")
        report.write(output, report.record(rows, found, best, _head(target)), cases)  # each time: a fault may end the next case
    console.print(f"{output / 'gpu.json'} and {output / 'gpu.md'} are written")
    wrong = [f"{row.case}, {row.contender}: {row.wrong}" for row in rows if row.wrong]
    if failed or wrong:
        console.print(
            *(f"[red]error:[/red] {escape(line)}" for line in (*(f"{name} failed conformance" for name in failed), *wrong)),
            sep="\n",
        )
        raise typer.Exit(1)


def _judge(name: str, device: str | None, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        sys.executable,
        "-m",
        "mha_core",
        "conform",
        name,
        "--report",
        str(folder),
        *(["--device", device] if device else []),
    ]
    return subprocess.run(words, check=False).returncode == 0


def _head(target: Target) -> dict[str, Any]:
    import torch

    name = "host" if target.is_rehearsal else torch.cuda.get_device_name(0)
    found = versions() | (dict(target.arrays.record.versions()) if target.arrays.record.versions else {})
    return {"rehearsal": target.is_rehearsal, "date": datetime.now(UTC).date().isoformat(), "card": name, "versions": found}


if __name__ == "__main__":
    typer.run(main)
