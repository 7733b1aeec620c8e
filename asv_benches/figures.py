"""The command ``python -m figures``: measure every page of figures anew, on this machine, which should do nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mha_conformance.bench.machine import busy

ROOT = Path(__file__).parents[1]
PATH = [ROOT / "asv_benches", ROOT / "tests" / "support", ROOT / "build" / "backends"]
"""Where the commands are, and the plugins that make installs. Without mha-native, which peers adds to its contenders."""
PART = dict.fromkeys(("jax", "dask", "ndonnx"), ("--quick", "--part", "0.03"))
"""JAX compiles each function for each shape, which takes a second a problem; the others run a scheduler or a graph for each."""
BUSY = 0.15
"""Share of the cores that other programs may use."""


def steps(backends: Sequence[str]) -> dict[str, list[str]]:
    """Return the command of each step, in order."""
    docs, python = ROOT / "docs", [sys.executable, "-m"]
    certificates = {
        f"certificate of {name}": [*python, "mha_core", "conform", name, "--report", str(shipped(name)), *PART.get(name, ())]
        for name in backends
    }
    return {
        **certificates,
        "peers": [*python, "peers", "--rounds", "9", "--pages", str(docs / "peers"), "--readme", str(ROOT / "README.md")],
        "ranks": [*python, "ranks", "--report", str(docs / "ranks")],
        "corpora": [*python, "corpora", "--report", str(docs / "corpora-measured")],
        "mutants": [*python, "mutants.page"],
        "matrix": [sys.executable, str(docs / "matrix_page.py")],
    }


def shipped(backend: str) -> Path:
    """Return the folder of the certificates in the package of a backend."""
    folder = ROOT / "backends" / f"mha_{backend}"
    return (folder / folder.name if (folder / folder.name).is_dir() else folder) / "certificates"


def ready(environment: Mapping[str, str]) -> list[str]:
    """Return the backends of this repository that can compute here, from ``mha backends``."""
    command = [sys.executable, "-m", "mha_core", "backends", "--json"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    names = [each["name"] for each in json.loads(done.stdout) if each["state"] == "ready"]
    return [name for name in names if (ROOT / "backends" / f"mha_{name}").is_dir()]


def main(
    *,
    step: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Only steps whose name contains WORD; repeatable.")
    ] = None,
) -> None:
    """Measure every page of figures anew: certificates, other libraries, ranks, corpora, mutants; then the matrix."""
    log = Console(stderr=True, highlight=False)
    paths = [*map(str, PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    if (share := busy()) > BUSY:
        log.print(f"[yellow]warning:[/yellow] other programs use {share:.0%} of the cores: times will be too long")
    failed = []
    for name, command in steps(ready(environment)).items():
        if step and not any(word in name for word in step):
            continue
        begin = time.monotonic()
        log.print(f"{name}: {' '.join(command[1:])}")
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0
        log.print(f"{name}: {'done' if done else '[red]failed[/red]'} after {(time.monotonic() - begin) / 60:.1f} minutes")
        failed += [name] * (not done)
    if failed:
        log.print(f"[red]failed:[/red] {', '.join(failed)}")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
