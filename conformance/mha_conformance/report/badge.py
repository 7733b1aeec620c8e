"""The badge of a certificate: a picture of two fields for a README, with the verdict and the number of tests."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from .sections import FAILED, PASSED

_WIDTH, _MARGIN = 6.6, 12
"""Width of a character and of the margins of a field, in pixels."""
_COLOURS = {PASSED: "#2e7d32", FAILED: "#b71c1c", "part": "#5d6b7a"}


def badge(record: Mapping[str, Any]) -> str:
    """Return the badge of a certificate as SVG: green only if the whole suite passed, and grey if a part of it did."""
    counts = {outcome: sum(section[outcome] for section in record["sections"].values()) for outcome in (PASSED, FAILED)}
    name = f"mha conform {record['backend']}"
    verdict, colour = f"{counts[PASSED]} passed", _COLOURS[record["result"]]
    if record["result"] == FAILED:
        verdict = f"{counts[FAILED]} failed"
    elif record["quick"] or record["selection"]:
        verdict, colour = f"{verdict}, {'quick' if record['quick'] else 'in part'}", _COLOURS["part"]
    left, right = (_WIDTH * len(text) + _MARGIN for text in (name, verdict))
    title = escape(f"{name}: {verdict} ({record['date'][:10]}, mha-core {record['mha_core']})")
    fields = "".join(
        f'<rect x="{x:g}" width="{width:g}" height="20" fill="{fill}"/><text x="{x + width / 2:g}" y="14">{escape(text)}</text>'
        for x, width, fill, text in ((0, left, "#3c4043", name), (left, right, colour, verdict))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:g}" height="20" role="img" aria-label="{title}">'
        f'<title>{title}</title><g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
        f' text-anchor="middle">{fields}</g></svg>\n'
    )
