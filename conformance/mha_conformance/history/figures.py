"""Plotly figures: a case's benchmarks side by side, a line per backend, commits along x."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from html import escape
from itertools import cycle
from textwrap import wrap
from typing import Any

from plotly.graph_objects import Scatter
from plotly.subplots import make_subplots

from .changes import Change
from .series import Machine, Series
from .units import scale

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that people with colour blindness can tell apart (Okabe and Ito, Color universal design, 2008)."""

SYMBOLS = ("circle", "square", "diamond", "cross", "x", "pentagon", "star")  # one more than colours: 42 pairs
STEP = "triangle-up"
LOGARITHMIC = 4.0
"""Ratio of the greatest value to the least from which an axis is logarithmic; other axes start at zero."""

TICKS, WIDE, ROW = 3, 310, 235  # labels along x; heights in pixels
FEW = 3  # with at most this many powers of ten, a logarithmic axis is labelled between them too
LINE, LINES = 52, 4  # characters per line and lines of a commit's subject in a hover text
UNKNOWN = "processor unknown"
Style = tuple[str, str]


def styles_of(backends: Sequence[str]) -> dict[str, Style]:
    """Return colour and symbol of each backend, the same in every figure."""
    return dict(zip(backends, zip(cycle(COLOURS), cycle(SYMBOLS), strict=False), strict=False))


def hovers(machine: Machine) -> list[str]:
    """Return the hover text of each commit, with commit subjects escaped, because plotly interprets some HTML."""
    texts = []
    for commit, processor in zip(machine.commits, machine.measured_on, strict=True):
        lines = wrap(commit.subject, LINE, max_lines=LINES, placeholder=" ...")
        parts = [f"{commit.short}, {commit.date}", *lines, *wrap(processor or UNKNOWN, LINE)]
        texts.append("<br>".join(_plain(part) for part in parts))
    return texts


def figure(machine: Machine, case: str, styles: Mapping[str, Style], changes: Sequence[Change]) -> dict[str, Any]:
    """Return the traces of a case and two layouts: `wide` with the benchmarks in a row, `narrow` with one below the other.

    The page adds the hover texts, which all figures share: `hovers`.
    """
    by_benchmark = (
        [each for each in machine.series if (each.benchmark, each.case) == (name, case)] for name in machine.benchmarks
    )
    panels = [panel for panel in by_benchmark if panel]
    values = [[value for each in panel for value in each.values if value is not None] for panel in panels]
    scales = [scale(numbers, panel[0].benchmark.unit) for panel, numbers in zip(panels, values, strict=True)]
    titles = [_plain(f"{panel[0].benchmark.title} ({unit})") for panel, (unit, _) in zip(panels, scales, strict=True)]
    wide = make_subplots(1, len(panels), subplot_titles=titles, horizontal_spacing=0.06)
    narrow = make_subplots(len(panels), 1, subplot_titles=titles, vertical_spacing=0.28 / len(panels))
    named = set()
    for column, (panel, numbers, (unit, size)) in enumerate(zip(panels, values, scales, strict=True), 1):
        for each in panel:
            steps = {machine.commits.index(step.bad) for step in changes if step.series is each and step.worse}
            processors = machine.processors_of(each.benchmark)
            for processor in dict.fromkeys(processors):
                line = _line(each, processors, processor, styles[each.backend], unit, size, steps)
                if any(value is not None for value in line.y):
                    line.showlegend = each.backend not in named
                    named.add(each.backend)
                    wide.add_trace(line, 1, column)
        axis = _y_axis([value / size for value in numbers])
        wide.update_yaxes(axis, row=1, col=column)
        narrow.update_yaxes(axis, row=column, col=1)
    for layout, height in ((wide, WIDE), (narrow, ROW * len(panels) + 60)):
        layout.update_xaxes(_x_axis(machine))
        layout.update_layout(height=height, template={})
        layout.update_annotations(font_size=13)
    return {
        "traces": json.loads(wide.to_json())["data"],
        "wide": json.loads(wide.to_json())["layout"],
        "narrow": json.loads(narrow.to_json())["layout"],
    }


def _line(
    series: Series, processors: Sequence[str], processor: str, style: Style, unit: str, size: float, steps: Set[int]
) -> Scatter:
    """Return the values on one processor; a line joins no others, and none at all if the processor is not known."""
    colour, symbol = style
    values = [value if here == processor else None for value, here in zip(series.values, processors, strict=True)]
    places = range(len(series.values))
    marker: dict[str, Any] = {"color": colour, "size": 6, "symbol": symbol}
    if steps:
        sizes = [13 if at in steps else 6 for at in places]
        symbols = [STEP if at in steps else symbol for at in places]
        marker |= {"size": sizes, "symbol": symbols, "line": {"width": 0}, "opacity": 1}
    name = _plain(series.backend)
    return Scatter(
        x=list(places),
        y=[None if value is None else value / size for value in values],
        name=name,
        legendgroup=name,
        mode="lines+markers" if processor else "markers",
        line={"color": colour, "width": 2},
        marker=marker,
        hovertemplate=f"<b>{name}</b>  %{{y:.4~g}} {_plain(unit)}<br>%{{customdata}}<extra></extra>",
    )


def _y_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return the y axis. A logarithmic one has explicit labels, at 1, 2 and 5, because plotly would write 20 as a small 2."""
    least, greatest = min(values, default=0.0), max(values, default=0.0)
    if least <= 0 or greatest < LOGARITHMIC * least:
        return {"type": "linear", "rangemode": "tozero"}
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(greatest)) + 1)
    digits = (1, 2, 5) if len(powers) <= FEW else (1,)
    return {"type": "log", "tickformat": "~r", "tickvals": [float(f"{digit}e{power}") for power in powers for digit in digits]}


def _x_axis(machine: Machine) -> dict[str, Any]:
    """Return the axis that all benchmarks of a figure share, so that they zoom together."""
    last = len(machine.commits) - 1
    places = sorted({round(last * at / (TICKS - 1)) for at in range(TICKS)})
    labels = [f"{machine.commits[at].short}<br>{machine.commits[at].date}" for at in places]
    return {"matches": "x", "tickvals": places, "ticktext": labels, "tickfont": {"size": 10}, "range": [-0.5, last + 0.5]}


def _plain(text: str) -> str:
    return escape(text, quote=False)
