"""How Sphinx builds these pages: ``make docs``. Nothing is fetched, neither by the build nor by its readers."""

from pathlib import Path

import mha_core

project = "mha-core"
author = copyright = "the mha-core developers"
release = mha_core.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
suppress_warnings = ["toc.not_included"]  # certificates, to which a page links; of all others tests/test_docs.py holds it
myst_heading_anchors = 3
autodoc_typehints = "none"  # docstrings tell shapes, which types do not
napoleon_use_param = napoleon_use_rtype = False  # a shape is prose: Sphinx would take each word of it for a class

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_extra_path = [str(path) for path in Path(__file__).parent.parent.glob("asv_benches/report.html")]  # where it was made
html_title = f"mha-core {release}"
copybutton_prompt_text = "$ "  # commands are copied without their prompts, and without what they print
