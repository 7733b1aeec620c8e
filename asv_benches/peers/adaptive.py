"""Pictures that suit a light and a dark page: colours of a figure become variables of a style sheet."""

from __future__ import annotations

import io
from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.figure import Figure

Style = Mapping[str, tuple[str, str, str]]
"""For each colour of a figure a variable, and its value on a light and on a dark page. matplotlib cannot write variables."""


def svg(figure: Figure, style: Style, *, salt: str, label: str) -> str:
    """Return the figure as SVG. ``salt`` makes its identifiers the same every time; ``label`` is what a screen reader says."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif", "font.size": 10}):
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    for colour, (name, _, _) in style.items():
        text = text.replace(colour, f"var(--{name})")
    light, dark = ("; ".join(f"--{each[0]}: {each[at]}" for each in style.values()) for at in (1, 2))
    sheet = f"<style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    head, end, body = text[text.index("<svg") :].partition(">")
    return f'{head} role="img" aria-label="{label}"{end}\n{sheet}{body}'
