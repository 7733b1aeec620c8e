"""The command ``mha backends``: its table at any width, its records, and a backend that cannot be used."""

import json

import numpy as np
import pytest
from programs import shown_backends

import mha_core as mha
import mha_numpy

GONE = """
from mha_core.plugin import Backend, hookimpl
def namespace():
    import gone_library
@hookimpl
def mha_backends():
    yield Backend('gone', 1, ('gone:Array',), namespace, install="pip install 'gone[all]'")
"""
WIDTHS = (60, 80, 100, 400)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What the command prints at some widths, its records by name, and the modules that it imported itself."""
    site = tmp_path_factory.mktemp("site")
    (site / "gone_plugin.py").write_text(GONE, encoding="utf-8")
    info = site / "gone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mha_core.plugins]\ngone = gone_plugin\n")
    (*shown, records), imported = shown_backends([*((width,) for width in WIDTHS), (400, "--json")], site)
    return dict(zip(WIDTHS, shown, strict=True)), {row["name"]: row for row in json.loads(records)}, imported


def test_numpy_is_listed_without_importing_it(outputs):
    shown, _, imported = outputs
    row = next(line for line in shown[400].splitlines() if "numpy" in line)
    for part in ("ready", f"numpy {np.__version__}", "cpu", f"mha-core {mha.__version__}"):
        assert part in row
    assert "numpy" not in imported


def test_an_unusable_backend_is_listed_with_the_reason_and_the_install_command(outputs):
    """The library is missing, and the brackets of the install command are not read as markup."""
    row, line = (line for line in outputs[0][400].splitlines() if "gone" in line)
    assert "unavailable" in row and "gone 1.0" in row
    assert line == (
        "gone (gone 1.0): unavailable: ModuleNotFoundError: No module named 'gone_library'; pip install 'gone[all]'"
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_broken(width, outputs):
    shown, rows, _ = outputs
    for row in rows.values():
        named = [row["name"], row["state"], *row["kernels"], *row["libraries"]]
        assert all(word in shown[width] for text in named for word in text.split()), row["name"]


def test_the_records_are_json(outputs):
    rows = outputs[1]
    assert rows["numpy"]["state"] == "ready"
    assert rows["numpy"]["kernels"] == sorted(f"{kernel.op}: {kernel.name}" for kernel in mha_numpy.mha_kernels())
    assert "gelu: tiles" in rows["numpy"]["kernels"]
    assert rows["numpy"]["libraries"]["numpy"] == np.__version__
    assert "attention: sdpa" in rows["torch"]["kernels"]
    assert rows["torch"]["devices"][0] == "cpu"
    assert {name: row["distribution"] for name, row in rows.items()} == dict.fromkeys(rows, "mha-core") | {"gone": "gone"}
