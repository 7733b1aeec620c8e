"""Render an HTML page that opens offline, with plotly.js inside. It needs jinja2 and plotly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs


def render(folder: Path, **values: Any) -> str:
    """Return the folder's ``page.html.j2`` rendered with these values and ``plotly``, the source of plotly.js.

    Values are escaped. Raises jinja2.UndefinedError if the template uses a value that is not given.
    """
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(plotly=get_plotlyjs(), **values)
