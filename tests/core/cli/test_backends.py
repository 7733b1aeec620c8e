"""The command ``mha backends``: its table at any width, its records, and a backend that cannot be used."""

import json

import numpy as np
import pytest
from command import ok
from programs import LAME, install, shown_backends
from sample_kernels import Plugin, a_kernel, registered

import mha_core as mha
import mha_numpy
from mha_core.dispatch import known

BROKEN = "raise RuntimeError('out of luck')"
HOLLOW = """
from mha_core.plugin import Kernel, hookimpl

@hookimpl
def mha_kernels():
    yield Kernel("numpy", "silu", "gone", 1, "no_such_module:silu", priority=-1)
    yield Kernel("numpy", "silu", "vague", 1, "math:sin", priority=-1, supports="no_such_module:supports")
"""
WIDTHS = (60, 80, 100, 400)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Output of the command at some widths, its records by name, and the modules that it imported itself."""
    site = tmp_path_factory.mktemp("site")
    for name, source in {"broken": BROKEN, "lame": LAME, "hollow": HOLLOW}.items():
        install(site, name, source)
    runs = [*((width,) for width in WIDTHS), (400, "--traceback"), (400, "--json")]
    (*shown, records), imported = shown_backends(runs, site)
    return dict(zip([*WIDTHS, "traceback"], shown, strict=True)), {row["name"]: row for row in json.loads(records)}, imported


def test_numpy_is_listed_without_importing_it(outputs):
    shown, _, imported = outputs
    row = next(line for line in shown[400].splitlines() if "numpy" in line)
    for part in ("ready", f"numpy {np.__version__}", "cpu"):
        assert part in row
    assert "numpy" not in imported


def test_what_cannot_be_used_is_listed_with_its_plugin_and_the_reason(outputs):
    """The brackets of the install command are not read as markup."""
    lines = outputs[0][400].splitlines()
    missing, kernel = "ModuleNotFoundError: No module named 'no_such_library'", "cannot be loaded: ModuleNotFoundError: "
    core = f"numpy (mha-core {mha.__version__}): kernel silu"
    assert {
        "broken (mha-broken 1.6): broken: RuntimeError: out of luck",
        f"lame (mha-lame 1.4): unavailable: {missing}; pip install 'lame[all]'",
        f"{core}: gone {kernel}No module named 'no_such_module'",
        f"{core}: vague {kernel}No module named 'no_such_module'",
    } <= set(lines)


def test_the_traceback_of_a_broken_plugin_is_shown_if_asked_for(outputs):
    shown, rows, _ = outputs
    assert "Traceback" not in shown[400] and "broken_plugin.py" in shown["traceback"]
    assert rows["broken"]["traceback"].startswith("Traceback") and rows["numpy"]["state"] == "ready"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_broken(width, outputs):
    shown, rows, _ = outputs
    for row in rows.values():
        named = [row["name"], row["state"], *list(row["libraries"])[:1]]
        assert all(word in shown[width] for text in named for word in text.split()), row["name"]


def test_the_records_are_json(outputs):
    rows = outputs[1]
    kernels = [f"{kernel.op}: {kernel.name}" for kernel in mha_numpy.mha_kernels()]
    assert rows["numpy"]["kernels"] == sorted([*kernels, "silu: gone", "silu: vague"])
    assert "gelu: tiles" in rows["numpy"]["kernels"]
    assert rows["numpy"]["libraries"]["numpy"] == np.__version__
    assert "attention: sdpa" in rows["torch"]["kernels"]
    assert rows["torch"]["devices"][0] == "cpu"
    installed = {name: f"mha-{name}" for name in ("broken", "lame")}
    absent = {name: row for name, row in rows.items() if row["state"] == "not installed"}
    assert {name: row["distribution"] for name, row in absent.items()} == known.backends()
    present = {name: row["distribution"] for name, row in rows.items() if name not in absent}
    assert present == dict.fromkeys(present, "mha-core") | installed


def test_a_known_backend_that_is_not_installed_is_listed_with_its_command(outputs):
    row, line = (next(line for line in outputs[0][400].splitlines() if start in line) for start in ("│ jax ", "jax (mha-jax)"))
    assert "not installed" in row
    assert line == "jax (mha-jax): not installed: pip install ./backends/mha_jax, in a checkout of mha-core"


def test_kernels_that_are_not_installed_are_named_with_the_ready_backends_that_they_serve(outputs):
    advice = "is not installed: pip install ./backends/mha_native, in a checkout of mha-core; `mha bench --here` says"
    (line,) = (line for line in outputs[0][400].splitlines() if line.startswith("mha-native"))
    assert line.startswith(f"mha-native, with kernels for numpy and torch, {advice}")
    assert f"mha-native, with kernels for torch, {advice}" in ok("backends", "torch")
    assert "mha-native" not in ok("backends", "cupy")
    with registered(Plugin([a_kernel()]), "mha_native"):
        assert "mha-native" not in ok("backends", "numpy")
