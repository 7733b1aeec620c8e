"""``mha backends``: list the installed backends, and whether each works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.text import Text

from ..dispatch.selection import BackendInfo, backends
from .command import command, failing_clearly
from .tables import prose_console, table

_COLUMNS = ("backend", "state", "library", "devices", "kernels", "from")

_PROBE = """
import json, sys, traceback
from mha_core.dispatch.backend import load
from mha_core.dispatch.errors import BackendUnavailable
from mha_core.dispatch.kernels import broken_kernels
try:
    record = load(sys.argv[1]).record
    row = {
        "libraries": dict(record.versions()) if record.versions else {},
        "devices": [str(device) for device in record.devices()] if record.devices else [],
        "broken_kernels": broken_kernels(sys.argv[1]),
    }
except BackendUnavailable as error:
    cause = error.__cause__
    row = {"reason": f"{type(cause).__name__}: {cause}", "install": error.install}
    row["traceback"] = "".join(traceback.format_exception(cause))
print(json.dumps(row))
"""
_TIMEOUT = 300  # seconds; the slowest library so far took about ten


def report() -> list[dict[str, Any]]:
    """Return a record for each registered backend and each broken plugin; the backends are probed in parallel."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_record, backends()))


def show(rows: Iterable[dict[str, Any]], *, traceback: bool) -> None:
    """Print a table, and below it a line for each problem, with full tracebacks if asked for."""
    console = prose_console()
    rows = list(rows)
    cells = [tuple(map(Text, _cells(row))) for row in rows]  # Text: brackets of an install line are not markup
    console.print(table(console, _COLUMNS, cells), soft_wrap=False)
    for row in rows:
        for line in _troubles(row):
            console.print(Text(f"{row['name']} ({_owner(row)}): {line}"))
        if traceback and row["traceback"]:
            console.print(Text(row["traceback"]), soft_wrap=True)
    if not traceback and any(row["traceback"] for row in rows):
        console.print(Text("mha backends --traceback shows the full errors", style="dim"))


def _record(backend: BackendInfo) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": backend.name,
        "state": backend.state,
        "reason": backend.reason,
        "install": "",
        "distribution": backend.distribution,
        "version": backend.version,
        "libraries": {},
        "devices": [],
        "kernels": list(backend.kernels),
        "broken_kernels": {},
        "traceback": backend.traceback,
    }
    if backend.state == "registered":
        row |= _probe(backend.name)
        row["state"] = "unavailable" if row["reason"] else "ready"
    return row


def _probe(name: str) -> dict[str, Any]:
    """Return libraries and devices of a backend, or the error, by loading it in a separate process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, name], capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"its library took more than {_TIMEOUT} seconds to load"}
    if done.returncode == 0:
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return row
    lines = done.stderr.strip().splitlines()
    return {
        "reason": lines[-1] if lines else f"the process that loads it exited with status {done.returncode}",
        "traceback": done.stderr,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    libraries = "\n".join(f"{name} {version}" for name, version in row["libraries"].items())
    return row["name"], row["state"], libraries, ", ".join(row["devices"]), "\n".join(row["kernels"]), _owner(row)


def _troubles(row: dict[str, Any]) -> Iterator[str]:
    if row["reason"]:
        yield f"{row['state']}: {row['reason']}" + (f"; {row['install']}" if row["install"] else "")
    for kernel, reason in row["broken_kernels"].items():
        yield f"kernel {kernel} {reason}"


def _owner(row: dict[str, Any]) -> str:
    return f"{row['distribution']} {row['version']}".strip()


@command("Example:  mha backends")
def backends_command(
    *,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show full tracebacks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, tracebacks included.")] = False,
) -> None:
    """List the installed backends, and whether each works."""
    with failing_clearly():
        rows = report()
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        else:
            show(rows, traceback=traceback)
