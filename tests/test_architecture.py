"""The house of docs/design.md, read from the source: imports go down the floors, and array libraries have no name here."""

import ast
import importlib
import inspect
from functools import cache

import pytest

import mha_core
from conftest import ROOT

# what each floor may import of mha_core beside itself; "" is the package itself, whose roof nobody below may touch
BELOW = {
    "algebra": set(),
    "dispatch": {"algebra"},
    "ops": {"algebra", "dispatch"},
    "layers": {"algebra", "dispatch", "ops"},
    "models": {"algebra", "dispatch", "ops", "layers"},
    # the suite judges all that stands below it, by way of the public names; of the command it knows nothing
    "conformance": {"algebra", "dispatch", "ops", "layers", ""},
    # what is timed is judged as the suite judges; the rest of mha_core it knows by its public name alone
    "bench": {"dispatch", "conformance", ""},
    "cli": {"algebra", "dispatch", "ops", "layers", "models", "bench", ""},
    "__main__": {"cli"},
    "plugin": {"algebra", "dispatch"},
    "__init__": {"algebra", "dispatch", "ops", "layers", "models"},
}
FOREIGN = {"torch", "cupy", "jax", "tensorflow", "scipy", "array_api_compat", "array_api_strict"}
# the judge computes in NumPy float64 and is run by pytest: both at module level, for nothing else of core imports it but
# the benchmarks, whose yardstick is plain NumPy
CONFORMANCE = "mha_core/conformance/"
BENCH = "mha_core/bench/"
# NumPy arrays are what converters give, and what weights and vectors are stored as: there it is imported, on need
NUMPY_IN = {
    "mha_core/dispatch/backend.py",
    "mha_core/layers/files.py",
    "mha_core/layers/init.py",
    "mha_core/models/files.py",
    "mha_core/cli/encode.py",
}
CORE = sorted((ROOT / "mha_core").rglob("*.py"))
SOURCE = CORE + sorted((ROOT / "backends").rglob("*.py"))
PUBLIC = sorted(name for name in dir(mha_core) if not name.startswith("_") and not inspect.ismodule(getattr(mha_core, name)))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


each_core_file = pytest.mark.parametrize("path", CORE, ids=name_of)


@cache
def imports(path):
    """Every name that a file imports, absolute and dotted, with the innermost function around it: None at module level."""
    package = path.relative_to(ROOT).parent.parts

    def absolute(node):
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        above = package[: len(package) - node.level + 1] if node.level else ()
        return [".".join((*above, *filter(None, [node.module]), alias.name)) for alias in node.names]

    def walk(node, function):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name, function) for name in absolute(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    return list(walk(ast.parse(path.read_text(encoding="utf-8")), None))


def floors_used(path):
    parts = [name.split(".") for name, _ in imports(path)]
    inside = [part[1:] for part in parts if part[0] == "mha_core"]
    return {part[0] if part and part[0] in BELOW else "" for part in inside}


@each_core_file
def test_imports_go_down_the_floors_only(path):
    floor = path.relative_to(ROOT / "mha_core").parts[0].removesuffix(".py")
    assert floor in BELOW, f"{floor} stands on no floor: say in BELOW and in docs/design.md what it may import"
    assert floors_used(path) <= BELOW[floor] | {floor}


@each_core_file
def test_core_names_no_foreign_array_library(path):
    assert FOREIGN.isdisjoint(name.partition(".")[0] for name, _ in imports(path))


@each_core_file
def test_core_imports_numpy_only_where_arrays_enter_or_leave_and_on_need(path):
    if name_of(path).startswith((CONFORMANCE, BENCH)):
        return
    inside = [function for name, function in imports(path) if name.partition(".")[0] == "numpy"]
    assert None not in inside
    assert not inside or name_of(path) in NUMPY_IN


def test_the_oracle_knows_nothing_of_the_algebra():
    """Neither do the formulas of pieces and layers, nor the bounds: the judge is written apart from what it judges."""
    files = sorted((ROOT / CONFORMANCE / "oracle").glob("*.py"))
    assert {"naive_attention.py", "reference.py", "tolerance.py"} <= {path.name for path in files}
    for path in files:
        inside = [name for name, _ in imports(path) if name.startswith("mha_core.")]
        allowed = ("mha_core.conformance.oracle.", "mha_core.conformance.report.evidence.")
        assert all(name.startswith(allowed) for name in inside), name_of(path)


def test_plain_numpy_knows_nothing_of_mha_core():
    assert floors_used(ROOT / BENCH / "plain.py") == set()


def test_what_is_timed_is_found_under_another_name_too():
    """Relative imports are of the tree that holds them; ``mha_core`` by its name is what is measured, and imported on need."""
    for path in sorted((ROOT / BENCH).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [
            node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and "mha_core" in ast.unparse(node)
        ]
        assert named == [], name_of(path)


@each_core_file
def test_only_the_suite_imports_pytest(path):
    inside = {name for name, _ in imports(path) if name.partition(".")[0] == "pytest"}
    assert not inside or name_of(path).startswith(CONFORMANCE)


def test_dispatch_imports_numpy_only_to_give_a_numpy_array():
    files = (ROOT / "mha_core" / "dispatch").glob("*.py")
    assert {function for path in files for name, function in imports(path) if name == "numpy"} <= {"to_numpy"}


def test_plugin_modules_import_their_library_on_need_only():
    files = sorted((ROOT / "backends").glob("*/__init__.py"))
    assert files
    for path in files:
        at_module_level = {name.partition(".")[0] for name, function in imports(path) if function is None}
        assert at_module_level.isdisjoint(FOREIGN | {"numpy"}), name_of(path)


def test_no_backend_folder_is_named_like_a_library():
    assert all(path.parent.name.startswith("mha_") for path in (ROOT / "backends").glob("*/__init__.py"))


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_no_file_is_longer_than_350_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_of_its_own(name):
    doc = inspect.getdoc(getattr(mha_core, name)) or ""
    assert doc.strip()
    assert not doc.startswith(f"{name}("), "this is the signature that dataclass or NamedTuple writes where there is none"


def test_all_lists_every_public_name_and_nothing_else():
    assert sorted(mha_core.__all__) == PUBLIC


@each_core_file
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_what_plugin_authors_import_is_listed():
    plugin = importlib.import_module("mha_core.plugin")
    assert {"AttentionProblem", "Backend", "Call", "Kernel", "hookimpl"} <= set(plugin.__all__)
    assert all(inspect.getdoc(getattr(plugin, name)) for name in plugin.__all__)
