"""A page that opens offline: a template, its neighbours and plotly.js, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs


def render(folder: Path, **values: Any) -> str:
    """The folder's ``page.html.j2`` with these values, and with ``plotly``, the source of plotly.js.

    Values are escaped. Raises jinja2.UndefinedError where the template asks for one that is not given.
    """
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(plotly=get_plotlyjs(), **values)
