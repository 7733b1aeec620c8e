"""Search that shows excerpts in pages opened from disk, which browsers do not let fetch one another.

The search page loads the text of all pages as one script, and answers its own requests from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

START, END = '<article role="main"', "</article>"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", _add_scripts)
    app.connect("build-finished", _write_texts)
    return {"parallel_read_safe": True}


def _add_scripts(app: Sphinx, page: str, *_: Any) -> None:
    if page == "search":
        for name in ("texts.js", "search_offline.js"):
            app.add_js_file(name)


def _write_texts(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir)
    texts = {}
    for name in sorted(app.env.found_docs):
        page = (folder / f"{name}.html").read_text(encoding="utf-8")
        start = page.index(START)
        texts[f"{name}.html"] = page[start : page.index(END, start) + len(END)]
    script = f"const TEXTS = {json.dumps(texts, ensure_ascii=False)};\n".replace("</", "<\\/")
    (folder / "_static" / "texts.js").write_text(script, encoding="utf-8")
