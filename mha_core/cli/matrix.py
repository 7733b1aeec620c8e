"""The matrix of backends: what computes each operation and feature, as plugins declare it, and what certificates judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..dispatch.context import ALGEBRA
from ..dispatch.contract import FEATURES, STATE_FEATURES
from ..dispatch.registry import registry
from .certificates import Certificate

Row = dict[str, Any]

NONE = "·"
"""The cell of a feature that no kernel takes."""

DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""The dtypes that conformance judges, and how a cell of the matrix names them."""


def rows(certificates: Mapping[str, Sequence[Certificate]]) -> list[Row]:
    """Return a row for each backend, operation and what computes it: the algebra, or a kernel.

    ``features`` are those that it takes. ``judged`` is the number of problems that it computed in a certificate's covering
    designs, by dtype; ``judged_under`` the same under each transform of the library, such as ``"gradient"``.
    """
    installed, matrix = registry(), []
    for backend in sorted(installed.backends):
        for certificate in _newest_by_device(certificates.get(backend, ())) or [None]:
            counts = _counts(certificate)
            for op in dict.fromkeys([*FEATURES, *(op for op, _ in counts)]):
                every = FEATURES.get(op, frozenset())
                computed_by = [(ALGEBRA, "mha-core", every)]
                for kernel in installed.kernels.get((backend, op), ()):
                    computed_by.append((kernel.name, installed.owner(kernel), kernel.handles & (every | STATE_FEATURES)))
                for name, owner, features in computed_by:
                    judged = counts.get((op, name), {})
                    matrix.append(
                        {
                            "backend": backend,
                            "device": certificate["device"] if certificate else None,
                            "operation": op,
                            "computed_by": name,
                            "from": owner,
                            "features": sorted(features),
                            "judged": judged.get("", {}),
                            "judged_under": {transform: dtypes for transform, dtypes in judged.items() if transform},
                        }
                    )
    return matrix


def _newest_by_device(certificates: Sequence[Certificate]) -> Sequence[Certificate | None]:
    return list({one["device"]: one for one in reversed(certificates)}.values())[::-1]


def _counts(certificate: Certificate | None) -> dict[tuple[str, str], dict[str, dict[str, int]]]:
    """Return the problems of a certificate by operation and what computed them, then by transform or "", then by dtype."""
    counts: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for title, dtypes in (certificate["covering"] if certificate else {}).items():
        what, _, by = title.rpartition(" by ")
        transform, _, op = what.rpartition(" of ")
        judged = {name: dtypes[name]["problems"] for name in DTYPES if dtypes.get(name, {}).get("problems")}
        if judged:
            counts.setdefault((op, by), {})[transform] = judged
    return counts


def cells(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the columns of the matrix, and its lines: an operation, then its features that some kernel takes.

    A cell of an operation names its kernels, and the dtypes that a certificate judged. A cell of a feature names the kernels
    that take it; the algebra takes all.
    """
    columns = list(dict.fromkeys(map(_column, rows)))
    lines = []
    for op in dict.fromkeys(row["operation"] for row in rows):
        of_op = [row for row in rows if row["operation"] == op]
        kernels = [row for row in of_op if row["computed_by"] != ALGEBRA]
        lines.append((op, *(_operation(name, kernels, of_op) for name in columns)))
        for feature in sorted({feature for row in kernels for feature in row["features"]}):
            taken_by = [row for row in kernels if feature in row["features"]]
            lines.append((f"  {feature}", *(_names(name, taken_by) or NONE for name in columns)))
    return ["operation", *columns], lines


def _column(row: Row) -> str:
    return row["backend"] if row["device"] in (None, "cpu") else f"{row['backend']} {row['device']}"


def _operation(column: str, kernels: Sequence[Row], of_op: Sequence[Row]) -> str:
    dtypes = {name for row in of_op if _column(row) == column for name in row["judged"]}
    in_short = " ".join(short for name, short in DTYPES.items() if name in dtypes)
    return "\n".join(filter(None, (_names(column, kernels) or ALGEBRA, in_short)))


def _names(column: str, kernels: Sequence[Row]) -> str:
    return ", ".join(row["computed_by"] for row in kernels if _column(row) == column)


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the matrix as a table of Markdown."""
    columns, lines = cells(rows)
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for first, *rest in lines:
        name = f"`{first.strip()}`" if not first.startswith(" ") else f"· {first.strip()}"
        yield f"| {name} | {' | '.join(cell.replace(chr(10), '<br>') for cell in rest)} |"
