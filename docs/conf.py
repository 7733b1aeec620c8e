"""Sphinx configuration for ``make docs``. Neither the build nor the built pages load anything from the network."""

import sys
from pathlib import Path

import mha_core

sys.path.append(str(Path(__file__).parent))  # the project's own extensions are there

project = "mha-core"
author = copyright = "the mha-core developers"
release = mha_core.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "code_lines",
    "described_names",
    "search_offline",
]
myst_heading_anchors = 3
autodoc_typehints = "none"  # docstrings give shapes; types do not
napoleon_use_param = napoleon_use_rtype = False  # shapes are prose; Sphinx would take each word for a class

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
_here = Path(__file__).parent
html_extra_path = [str(path) for path in (*_here.glob("*.png"), *_here.parent.glob("asv_benches/report.html"))]  # if it exists
html_title = f"mha-core {release}"
copybutton_prompt_text = "$ "  # copy commands without prompts and output
