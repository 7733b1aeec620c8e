"""Code whose long lines wrap with an indent, as page.css says: each line is an element of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pygments.formatters import HtmlFormatter
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge


class LinesFormatter(HtmlFormatter[str]):
    """HTML in which each line of code is a span of the class ``line``, or ``row`` if it is part of a table."""

    def wrap(self, source: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Wrap the lines in spans; the character that ends a line stays outside, as Sphinx splits the text there."""
        lines: Iterator[tuple[int, str]] = super().wrap((code, _line(text) if code else text) for code, text in source)
        return lines


def _line(text: str) -> str:
    """Return a line as an element that says how far it is indented."""
    text = text.removesuffix("\n")
    plain = re.sub("<[^>]*>", "", text)
    if set(plain) & set("│┃─━"):  # tables are drawn with these
        return f'<span class="row">{text}</span>\n'
    return f'<span class="line" style="--indent: {len(plain) - len(plain.lstrip())}ch">{text}</span>\n'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    PygmentsBridge.html_formatter = LinesFormatter
    return {"parallel_read_safe": True}
