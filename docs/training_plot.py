"""Draw docs/training.svg: the loss of each step of examples/digits.py on NumPy and on torch, and how far apart they are.

Run from the root of the repository: python docs/training_plot.py
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
INK, QUIET, FIRST, SECOND = "#010101", "#020202", "#030303", "#040404"
STYLE = {
    INK: ("ink", "#1b1f24", "#e4e7eb"),
    QUIET: ("quiet", "#9aa4b0", "#5b6470"),
    FIRST: ("first", "#0757a8", "#7db7f5"),
    SECOND: ("second", "#c2410c", "#fb923c"),
}
"""For each colour the variable of the style sheet, and its value on a light and on a dark page."""


def losses():
    """Return the loss of each step on both backends."""
    import digits

    seen, _, labels, _ = digits.data()
    return {backend: np.asarray(digits.train(seen, labels, backend=backend)[1]) for backend in ("numpy", "torch")}


def drawn(curves):
    """Return the figure: both curves, and below them the distance between them."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for (name, curve), colour, width in zip(curves.items(), (FIRST, SECOND), (3.5, 1.0), strict=True):
        above.plot(np.arange(1, len(curve) + 1), curve, color=colour, linewidth=width, label=name)
    apart = np.abs(curves["numpy"] - curves["torch"])
    below.plot(np.arange(1, len(apart) + 1), np.maximum(apart, 1e-9), color=INK, linewidth=0.8)
    for axes, label in ((above, "loss"), (below, "difference")):
        axes.set_yscale("log")
        axes.set_ylabel(label, color=INK)
        axes.tick_params(colors=INK)
        axes.grid(color=QUIET, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    above.legend(frameon=False, labelcolor=INK)
    below.set_xlabel("step", color=INK)
    return figure


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "asv_benches")]
    from peers import adaptive

    picture = adaptive.svg(drawn(losses()), STYLE, salt="training", label="Loss of each step on NumPy and torch")
    (ROOT / "docs" / "training.svg").write_text(picture, encoding="utf-8")
