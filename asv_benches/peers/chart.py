"""The results as a picture: in each case the ratio of every backend, its goal, and the ratio at the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import adaptive
from .measure import Row

INK, QUIET, RULE, HIT, MISS = "#010101", "#020202", "#030303", "#040404", "#050505"
STYLE: adaptive.Style = {
    INK: ("ink", "#1b1f24", "#e4e7eb"),
    QUIET: ("quiet", "#5b6470", "#9aa4b0"),
    RULE: ("rule", "#dde1e6", "#343a42"),
    HIT: ("hit", "#0757a8", "#7db7f5"),
    MISS: ("miss", "#c2410c", "#fb923c"),
}
MARKERS = {
    "numpy": "o",
    "torch": "s",
    "numpy+native": "P",
    "torch+native": "X",
    "numpy+native-avx2": "^",
    "torch+native-avx2": "v",
}
_ROW, _WIDTH = 0.19, 6.4  # inches of a line of text or of marks, and of the picture
_TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2)


def svg(rows: Sequence[Row]) -> str:
    """Return the picture as SVG that suits a light and a dark page."""
    return adaptive.svg(drawn(rows), STYLE, salt="peers", label="Time relative to other libraries")


def drawn(rows: Sequence[Row]) -> Figure:
    """Return the figure: for each case a line with its name, and a line of marks for each backend."""
    timed = [row for row in rows if row.ratio is not None]
    groups = [(names, list(members)) for names, members in groupby(timed, key=lambda row: (row.case, row.peer))]
    height = sum(1.5 + len(members) for _, members in groups) + 1
    figure = Figure(figsize=(_WIDTH, _ROW * height + 1.1), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlim=(0.04, 4))
    at = 0.0
    for (case, peer), members in groups:
        axes.annotate(f"{case}  ·  {peer}", (0, at), xycoords=axes.get_yaxis_transform(), color=INK, fontsize=9, va="center")
        for row in members:
            at += 1
            _mark(axes, row, at)
        at += 1.5
    axes.axvline(1, color=QUIET, linewidth=1, zorder=0)
    axes.set(ylim=(at, -1), yticks=[])
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS], color=QUIET)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("time divided by the other library's; left of 1 is faster", color=QUIET, fontsize=9)
    axes.grid(axis="x", color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=RULE, labeltop=True, labelsize=9)
    axes.spines[:].set_visible(False)
    handles = [
        *(
            Line2D([], [], color=HIT, marker=MARKERS.get(name, "*"), linestyle="", label=name)
            for name in dict.fromkeys(row.backend for row in timed)
        ),
        Line2D([], [], color=MISS, marker="o", linestyle="", label="goal missed"),
        Line2D([], [], color=INK, marker="|", markersize=9, linestyle="", label="goal"),
        Line2D([], [], color=QUIET, marker="d", markerfacecolor="none", linestyle="", label="limit"),
    ]
    spacing = {"handletextpad": 0.2, "columnspacing": 1.0}
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK, fontsize=9, **spacing)
    return figure


def _mark(axes: Axes, row: Row, at: float) -> None:
    """Draw a row: the quartiles as a line, the ratio, its goal, and the ratio at the machine's limit."""
    assert row.ratio is not None
    colour = MISS if row.verdict.startswith("missed") else HIT
    median = row.ratio.median
    axes.plot([row.ratio.low, row.ratio.high], [at, at], color=colour, linewidth=1.5, alpha=0.5)
    if row.reached is not None:
        limit = median * row.reached
        edge = axes.get_xlim()[0] * 1.08
        marker = "d" if limit > edge else "<"  # an arrow: the limit is further to the left
        axes.plot(max(limit, edge), at, marker=marker, markersize=5, color=QUIET, markerfacecolor="none", linestyle="")
    if row.goal is not None:
        axes.plot(row.goal, at, marker="|", markersize=9, color=INK, linestyle="")
    axes.plot(median, at, marker=MARKERS.get(row.backend, "*"), markersize=5.5, color=colour, linestyle="")
    right = axes.get_yaxis_transform()
    axes.annotate(f"{median:.2f}", (1.0, at), xycoords=right, va="center", ha="right", fontsize=9, color=colour)
