"""``python -m tracking``: what asv has measured, over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from asv.util import UserError
from rich.console import Console
from rich.markup import escape

from . import page, series

HERE = Path(__file__).parents[1]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Performance over time, from the results of asv."""


@app.command()
def report(
    *,
    output: Annotated[Path, typer.Option(metavar="PATH", help="The page.")] = HERE / "report.html",
    config: Annotated[Path, typer.Option(metavar="PATH", help="Of asv, whose results are shown.")] = HERE / "asv.conf.json",
) -> None:
    """Write one page that opens offline: newest figures, regressions, and a plot for each case, a line for each backend."""
    log = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        history = series.read(config)
    except (series.NoHistory, UserError) as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(1) from error
    if history.strangers:
        many = "commits that are" if history.strangers > 1 else "commit that is"
        log.print(
            f"left out: {history.strangers} measured {many} not among the first parents of HEAD "
            "(where a shallow clone has lost them: git fetch --unshallow)"
        )
    page.write(history, output)
    log.print(f"{escape(str(output))}: {sum(len(machine.commits) for machine in history.machines)} commits", style="dim")


if __name__ == "__main__":
    app()
