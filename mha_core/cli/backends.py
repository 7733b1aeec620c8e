"""``mha backends``: list the backends and whether each works; show one with its kernels; or what computes each feature."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..dispatch import known
from ..dispatch.context import ALGEBRA
from ..dispatch.selection import check_name
from . import matrix, probe
from .certificates import Certificate, certificates, summary
from .command import command, failing_clearly
from .tables import prose_console, table

_COLUMNS = ("backend", "state", "library", "devices", "certificate")
_KERNEL_COLUMNS = ("operation", "kernel", "features", "judged in")


def show(rows: Iterable[probe.Record], *, traceback: bool) -> None:
    """Print a line for each backend, and below them one for each problem, with full tracebacks if asked for."""
    console = prose_console()
    rows, (shipped, unreadable) = list(rows), certificates()
    _print(console, _COLUMNS, [(*_cells(row), "\n".join(map(summary, shipped.get(row["name"], ())))) for row in rows])
    troubles = (f"{row['name']} ({_owner(row)}): {line}" for row in rows for line in _troubles(row))
    for line in (*troubles, *unreadable, *_kernels_to_install(rows)):
        console.print(Text(line))
    for row in rows:
        if traceback and row["traceback"]:
            console.print(Text(row["traceback"]), soft_wrap=True)
    if not traceback and any(row["traceback"] for row in rows):
        console.print(Text("mha backends --traceback shows the full errors", style="dim"))


def show_one(rows: Sequence[probe.Record]) -> None:
    """Print the libraries, devices and certificates of a backend, and its kernels with the features that they take.

    Other rows of its name are of kernels that its plugin declares and that are never used.
    """
    console = prose_console()
    row = next((row for row in rows if row["state"] != "idle"), rows[0])
    console.print(Text(f"{row['name']} ({_owner(row)}): {row['state']}"))
    lines = {"libraries": _versions(row["libraries"]), "devices": ", ".join(row["devices"])}
    shipped = certificates()[0]
    for each in shipped.get(row["name"], ()):
        lines[f"certificate for {each['device']}"] = f"{summary(each)}, {each['result']} with {_versions(each['libraries'])}"
    for what, line in lines.items():
        if line:
            console.print(Text(f"{what}: {line}"))
    kernels = [each for each in matrix.rows(shipped) if each["backend"] == row["name"] and each["computed_by"] != ALGEBRA]
    if kernels:
        _print(console, _KERNEL_COLUMNS, [_kernel_cells(each, _owner(row)) for each in kernels])
    console.print(Text("everything else: the algebra, on any backend"))
    for line in (*(line for each in rows for line in _troubles(each)), *_kernels_to_install(rows)):
        console.print(Text(line))


def show_matrix(rows: Sequence[matrix.Row]) -> None:
    """Print what computes each operation and feature on each backend."""
    console = prose_console()
    columns, lines = matrix.cells(rows)
    _print(console, columns, lines)
    console.print(
        Text(f"{matrix.NONE}: the algebra computes it. {', '.join(matrix.DTYPES.values())}: a certificate judged it.")
    )


def _print(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    cells = [tuple(map(Text, row)) for row in rows]  # Text: brackets of an install line are not markup
    console.print(table(console, columns, cells), soft_wrap=False)


def _cells(row: probe.Record) -> tuple[str, ...]:
    library = _versions(dict(list(row["libraries"].items())[:1]))  # the others are the helpers of the first
    return row["name"], row["state"], library, ", ".join(row["devices"])


def _kernel_cells(row: matrix.Row, owner: str) -> tuple[str, ...]:
    judged = " ".join(short for name, short in matrix.DTYPES.items() if name in row["judged"])
    kernel = row["computed_by"] + (f" from {row['from']}" if row["from"] != owner else "")
    return row["operation"], kernel, ", ".join(row["features"]), judged


def _versions(libraries: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in libraries.items())


def _troubles(row: probe.Record) -> Iterator[str]:
    if row["reason"]:
        yield f"{row['state']}: {row['reason']}" + (f"; {row['install']}" if row["install"] else "")
    elif row["install"]:
        yield f"{row['state']}: {row['install']}"
    for kernel, reason in row["broken_kernels"].items():
        yield f"kernel {kernel} {reason}"


def _kernels_to_install(rows: Iterable[probe.Record]) -> Iterator[str]:
    return known.advice_on_kernels((row["name"], "") for row in rows if row["state"] == "ready")


def _in_short(shipped: Iterable[Certificate]) -> list[Certificate]:
    return [{name: each[name] for name in ("device", "date", "result", "quick", "selection", "libraries")} for each in shipped]


def _owner(row: probe.Record) -> str:
    return f"{row['distribution']} {row['version']}".strip()


@command("Example:  mha backends")
def backends_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this backend and its kernels.")] = None,
    *,
    as_matrix: Annotated[
        bool, typer.Option("--matrix", help="Show what computes each operation and feature, and what a certificate judged.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show full tracebacks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, tracebacks and certificates included.")] = False,
) -> None:
    """List the backends, and whether each works."""
    with failing_clearly():
        name = name and check_name(name)
        shipped = certificates()[0]
        if as_matrix:
            cells = [row for row in matrix.rows(shipped) if name in (None, row["backend"])]
            typer.echo(json.dumps(cells, indent=2)) if as_json else show_matrix(cells)
            return
        rows = probe.report(name)
        if as_json:
            typer.echo(json.dumps([row | {"certificates": _in_short(shipped.get(row["name"], ()))} for row in rows], indent=2))
        elif name:
            show_one(rows)
        else:
            show(rows, traceback=traceback)
