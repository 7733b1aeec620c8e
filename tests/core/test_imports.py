"""A fresh interpreter imports only the standard library until a call needs more; then plugins, which are independent."""

import sys

import pytest
from programs import ARRAY_LIBRARIES, LAME, forks, install, run

PLUGINS = ("mha_numpy", "pluggy", "importlib.metadata", "importlib_metadata")
# modules of the standard library that are slow to import, or import others, and are needed only to write files or show errors
LATER = ("tempfile", "shutil", "bz2", "lzma", "difflib", "traceback", "subprocess", "multiprocessing", "concurrent", "asyncio")
MODELS_AND_CLI = ("safetensors", "tokenizers", "huggingface_hub", "tqdm", "typer", "rich")


def imported(code):
    """Return the modules that ``code`` adds to those of a bare interpreter."""
    return set(
        run(f"import json, sys\nbefore = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))")
    )


def test_import_loads_only_itself_and_what_is_quick_in_the_standard_library():
    by_the_package = imported("import mha_core")
    assert {name.partition(".")[0] for name in by_the_package} <= sys.stdlib_module_names | {"mha_core"}
    assert by_the_package.isdisjoint((*LATER, *PLUGINS)), "plugin metadata, or what few calls need"


def test_listing_backends_imports_plugin_modules_and_no_array_library():
    modules = imported("import mha_core\nassert mha_core.backends()")
    assert {"mha_numpy", "mha_torch", "mha_cupy"} <= modules
    assert modules.isdisjoint(ARRAY_LIBRARIES)


def test_the_numpy_backend_imports_numpy_and_no_other_library():
    modules = imported("import mha_core\nmha_core.sinusoidal_positions(2, 4, backend='numpy')")
    assert modules.intersection(ARRAY_LIBRARIES) == {"numpy"}


LAYER = """
import mha_core as mha, numpy
layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, activation='gelu', seed=0)
assert layer(numpy.ones((3, 4), dtype='float32')).shape == (3, 4)
"""
WITHOUT = {
    "the contract of plugins": ("import mha_core.plugin", ARRAY_LIBRARIES),
    "a mask or bias without arrays": (
        "import mha_core as mha\nmha.causal() & ~mha.window(3, 0) | mha.packed([1, 2])\nmha.alibi(4)",
        (*ARRAY_LIBRARIES, *PLUGINS),
    ),
    "layers": (LAYER, MODELS_AND_CLI),
}


@pytest.mark.parametrize(("code", "modules"), WITHOUT.values(), ids=WITHOUT)
def test_some_uses_import_none_of_these(code, modules):
    assert imported(code).isdisjoint(modules)


# plugins from entry points, in distributions laid out by hand


@pytest.fixture(scope="module")
def forked():
    """Run programs in processes that have imported mha_core and NumPy, and read no plugin."""
    with forks("import numpy, mha_core") as function:
        yield function


CRASHING = {
    "crash": ("raise RuntimeError('out of luck')", "RuntimeError: out of luck"),
    "absent": (None, "ModuleNotFoundError: No module named 'absent_plugin'"),
    "syntax": ("def f(:", "SyntaxError: "),
    "leave": ("import sys\nsys.exit('left on import')", "SystemExit: left on import"),
    "hookless": ("def mha_backends(): ...", "TypeError: hookless has no hook"),
}
PROGRAM = """
import json, numpy, mha_core as mha
def error(name):
    if name in ("torch", "cupy"):  # they take seconds to import, and no test here needs them
        return None
    try:
        mha.sinusoidal_positions(2, 4, backend=name)
    except mha.MhaError as e:
        return f"{type(e).__name__}: {e}"
rows = {row.name: {**vars(row), "error": error(row.name)} for row in mha.backends()}
print(json.dumps([rows, mha.relu(numpy.asarray([-1.0, 2.0])).tolist()]))
"""


def test_a_library_that_is_missing_is_named_with_its_plugin_and_its_install_line(forked, tmp_path):
    install(tmp_path, "lame", LAME)
    row = forked(PROGRAM, tmp_path)[0]["lame"]
    assert row["state"] == "registered"
    for part in ("BackendUnavailable", "'lame'", "mha-lame 1.4", "named 'no_such_library'", "pip install 'lame[all]'"):
        assert part in row["error"]


RECORD = """
from mha_core.plugin import Backend, Kernel, hookimpl

@hookimpl
def mha_backends():
    {backend}

@hookimpl
def mha_kernels():
    {kernel}
"""


def record(backend="return []", kernel="return []"):
    """Return the source of a plugin with these statements in its hooks."""
    return RECORD.format(backend=backend, kernel=kernel)


WRONG = {
    "rubbish": (record("yield 42"), "TypeError: a plugin's hook yielded 42; expected a Backend"),
    "a_thief": (  # whose name sorts before that of the owner
        record("yield Backend('numpy', 1, (), lambda: None)"),
        "ValueError: a backend named 'numpy' is already registered by mha-core ",
    ),
    "no_exception": ("class Stop(BaseException): pass\n\nraise Stop('now')", "Stop: now"),
}


@pytest.mark.parametrize("name", CRASHING | WRONG)
def test_a_broken_plugin_is_reported_with_its_distribution_and_breaks_no_other(forked, tmp_path, name):
    source, reason = (CRASHING | WRONG)[name]
    install(tmp_path, name, source)
    rows, relu = forked(PROGRAM, tmp_path)
    row = rows[name]
    assert (row["distribution"], row["version"], row["state"]) == (f"mha-{name}", f"1.{len(name)}", "broken")
    assert row["reason"].startswith(reason)
    if name != "syntax":  # the traceback of a syntax error ends with the message alone
        assert row["traceback"].rstrip().splitlines()[-1].endswith(row["reason"])
    assert (f"{name}_plugin.py" in row["traceback"]) == (name not in ("absent", "hookless", "rubbish", "a_thief"))
    if name in CRASHING:
        assert row["error"].startswith(f"UnknownBackend: no backend is named {name!r}")
        assert f"plugin mha-{name} 1.{len(name)} is broken: " in row["error"]
    numpy = rows["numpy"]
    assert (numpy["state"], numpy["distribution"], numpy["error"], numpy["traceback"]) == ("registered", "mha-core", None, "")
    assert relu == [0.0, 2.0]


IDLE = {
    "nothing": (record("return None"), "its hooks yield neither a backend, a kernel nor an engine"),
    "lonely": (
        record(kernel="yield Kernel('absent', 'gelu', 'fast', 1, 'a:b')"),
        "it extends backend 'absent', which no installed plugin provides",
    ),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_plugin_that_brings_nothing_of_use_is_idle(forked, tmp_path, name):
    source, reason = IDLE[name]
    install(tmp_path, name, source)
    row = forked(PROGRAM, tmp_path)[0][name]
    assert (row["state"], row["reason"]) == ("idle", reason)


def test_supports_by_name_is_imported_when_a_call_first_asks(forked, tmp_path):
    kernel = "yield Kernel('numpy', 'gelu', 'late', 1, 'limits:gelu', priority=9, supports='limits:supports')"
    install(tmp_path, "late", record(kernel=kernel))
    (tmp_path / "limits.py").write_text("def supports(call):\n    return 'it is Monday'\n", encoding="utf-8")
    program = """
import json, sys, numpy, mha_core as mha
x = numpy.ones(3)
mha.backends(), mha.relu(x)
before = "limits" in sys.modules
print(json.dumps([before, dict(mha.explain("gelu", x).rejected)["late"]]))
"""
    assert forked(program, tmp_path) == [False, "it is Monday"]
