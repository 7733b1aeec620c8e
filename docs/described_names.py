"""Descriptions in comments: code hosts show the list of names before the comment, and the built page what it describes in full.

``python tests/support/reference_page.py`` writes the lists.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

LISTED = re.compile(r"^(?: *- [^\n]*\n)+\n<!-- described\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
"""A list of names, and the directives that describe them, which Sphinx is to read in its place."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _describe)
    return {"parallel_read_safe": True}


def _describe(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = LISTED.sub(r"```{eval-rst}\n\1```", source[0])
