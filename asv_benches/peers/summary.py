"""The README's tables of speed: a few lines of the pages of the slowest and the fastest processor, between two marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import reports
from mha_conformance.bench.limits import MATRIX
from mha_conformance.bench.machine import described

from .measure import Row

Page: TypeAlias = tuple[Sequence[Row], Mapping[str, Any]]
"""The rows of a page, and all results that it was written from."""
BEGIN, END = "<!-- written by make bench-peers -->", "<!-- end of speed -->"
COLUMNS = {"numpy": "NumPy", "torch": "torch", "numpy+native": "NumPy, mha-native", "torch+native": "torch, mha-native"}
LINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch's fused attention, 128 to 8192 tokens": ("torch SDPA", ("attention 8x8x", "attention 1x8x", "attention 32x12x")),
    "the same with gradients": ("torch SDPA", ("attention and gradients",)),
    "torch's fused attention, one query and 8192 keys": ("torch SDPA", ("decode 1x8x1x64, 8192 keys",)),
    "torch's fast path, encoder layer of 8 x 512 tokens": ("nn.", ("encoder layer 8x512x512",)),
    "a training step of torch's encoder layer": ("nn.", ("encoder layer, training",)),
    "sentence-transformers, real sentences": ("sentence-transformers", ("text encoder",)),
    "ONNX Runtime, real sentences": ("ONNX Runtime", ("text encoder",)),
    "OpenVINO, real sentences": ("OpenVINO", ("text encoder",)),
}
"""What each line compares with: how the name of the other library begins, and the names of its cases. A name that is whole
is that case alone; a line without results is left out."""


def tables(pages: Sequence[Page]) -> str:
    """Return the tables as Markdown: of the processors with the slowest and the fastest matrix product, if there are two."""
    by_rate = sorted(pages, key=lambda page: page[1]["limits"].get(MATRIX, 0.0))
    heading = "Our time divided by the other library's, in float32; below 1 is faster."
    ends = by_rate if len(by_rate) < 2 else (by_rate[0], by_rate[-1])
    return "\n\n".join([heading, *(table(*page) for page in ends)])


def table(rows: Sequence[Row], results: Mapping[str, Any]) -> str:
    """Return the table of one processor, with what its figures depend on; a range where a line has several cases."""
    lines = []
    for label, (peer, words) in LINES.items():
        of_peer = [row for row in rows if row.peer.startswith(peer)]
        names = {row.case for row in of_peer}
        cases = {name for name in names for word in words if (name == word if word in names else name.startswith(word))}
        cells = [_range([row for row in of_peer if row.case in cases], backend) for backend in COLUMNS]
        lines += [(label, *cells)] if any(cells) else []
    processor = {name: value for name, value in results["machine"].items() if name not in ("caches", "system")}
    origin = f"{results['date']}, {described(processor)}; commit {results['versions']['commit']}"
    rate = f", {results['limits'][MATRIX] / 1e9:.0f} GFLOP/s in matrix products" if MATRIX in results["limits"] else ""
    return f"Measured on {origin}{rate}.\n\n{reports.table(('compared with', *COLUMNS.values()), lines, left=1)}"


def _range(rows: Sequence[Row], backend: str) -> str:
    ratios = [row.ratio.median for row in rows if row.backend == backend and row.ratio]
    ends = dict.fromkeys(f"{end(ratios):.2f}" for end in (min, max) if ratios)
    return " to ".join(ends)


def write(page: Path, pages: Sequence[Page]) -> None:
    """Write the tables into a page. Raises ValueError if the page lacks the marks."""
    text = reports.inserted(page.read_text(encoding="utf-8"), BEGIN, END, tables(pages))
    page.write_text(text, encoding="utf-8")
