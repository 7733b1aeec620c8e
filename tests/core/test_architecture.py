"""The layout of core, checked in its source: imports go down the floors, and no file names an array library."""

import ast
import importlib
import inspect
from functools import cache

import pytest
from project import ROOT
from together import for_each

import mha_core
from mha_core import plugin

# what each floor of mha_core may import besides itself; "" is the package itself, which the command alone imports
BELOW = {
    "algebra": set(),
    "autodiff": {"algebra"},
    "dispatch": {"algebra", "autodiff"},
    "ops": {"algebra", "autodiff", "dispatch"},
    "layers": {"algebra", "autodiff", "dispatch", "ops"},
    "train": {"algebra", "dispatch", "ops", "layers"},
    "distributed": {"algebra", "dispatch", "ops"},
    "cli": {"algebra", "dispatch", "ops", "layers", ""},
    "__main__": {"cli"},
    "plugin": {"algebra", "dispatch", "ops"},
    "shared": {"algebra", "dispatch", "distributed", "ops", "layers"},
    "__init__": {"algebra", "dispatch", "distributed", "ops", "layers", "train"},
}
FOREIGN = {"torch", "cupy", "jax", "tensorflow", "scipy", "array_api_compat", "array_api_strict"}
# files that import NumPy: converters return NumPy arrays, and weights are stored as such
NUMPY_IN = {"mha_core/dispatch/backend.py", "mha_core/layers/files.py", "mha_core/layers/init.py"}
CORE = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "mha_core").rglob("*.py"))}
DISTRIBUTIONS = {
    "mha_text": ROOT / "text",
    "mha_conformance": ROOT / "conformance",
    **{name: ROOT / "backends" / name for name in ("mha_native", "mha_jax", "mha_dask", "mha_ndonnx")},
}
"""The folder of each distribution of this repository but mha-core."""
PUBLIC_MODULES = {
    "mha_core": ("", "plugin", "shared", "distributed", "cli.command", "cli.tables", "cli.probe", "cli.offline"),
    "mha_numpy": ("shared",),
    "mha_text": ("",),
}
"""The modules from which another distribution may import."""
CONFORMANCE = ROOT / "conformance" / "mha_conformance"
SOURCE = {
    path.relative_to(ROOT).as_posix(): path
    for folder in ("mha_core", "backends", "text", "conformance")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
PUBLIC = sorted(name for name in dir(mha_core) if not name.startswith("_") and not inspect.ismodule(getattr(mha_core, name)))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@cache
def imports(path):
    """Return (name, function) for each import of a file: the absolute dotted name, and the enclosing function or None."""
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


def test_imports_go_down_the_floors_only():
    def check(path):
        floor = path.relative_to(ROOT / "mha_core").parts[0].removesuffix(".py")
        assert floor in BELOW, f"{floor} is not a floor: say in BELOW and in docs/architecture.md what it may import"
        assert floors_used(path) <= BELOW[floor] | {floor}

    for_each(CORE, check)


def test_other_distributions_import_declared_modules_only():
    def check(distribution):
        for path in sorted((DISTRIBUTIONS[distribution] / distribution).rglob("*.py")):
            for name, _ in imports(path):
                package, _, module = name.partition(".")
                if package in PUBLIC_MODULES.keys() - {distribution} and path not in FOR_OLD:
                    modules = PUBLIC_MODULES[package]
                    assert module in modules or module.rpartition(".")[0] in modules, f"{name_of(path)} imports {name}"

    for_each({name: name for name in DISTRIBUTIONS}, check)


def test_distributions_are_released_together():
    versions = {importlib.import_module(name).__version__ for name in ("mha_core", "mha_text", "mha_conformance")}
    assert versions == {mha_core.__version__}
    for name in ("text", "conformance"):
        assert f'=={mha_core.__version__}"' in (ROOT / name / "pyproject.toml").read_text(encoding="utf-8")


def test_the_oracle_does_not_import_the_algebra():
    """Nor do the formulas of pieces and layers, or the bounds: the oracle is independent of the code that it judges."""
    files = sorted((CONFORMANCE / "oracle").glob("*.py"))
    assert {"attention.py", "reference.py", "tolerance.py"} <= {path.name for path in files}
    for path in files:
        inside = [name for name, _ in imports(path) if name.startswith(("mha_core", "conformance."))]
        allowed = ("conformance.mha_conformance.oracle.", "conformance.mha_conformance.report.evidence.")
        assert all(name.startswith(allowed) for name in inside), name_of(path)


FOR_OLD = [CONFORMANCE / "bench" / f"{name}.py" for name in ("timing", "asv")]
"""asv runs them on commits of mha_core that are older than ``mha_core.shared``."""
BENCH = [path for path in sorted((CONFORMANCE / "bench").glob("*.py")) if path != FOR_OLD[0]]
BACKENDS = sorted((ROOT / "backends").glob("*/__init__.py"))
LATE = {
    "core": (CORE.values(), {"numpy"}),
    "benchmarks": (BENCH, {"mha_core"}),  # what they measure; relative imports refer to the tree that holds them
    "plugins": (BACKENDS, FOREIGN | {"numpy"}),
}
"""Files, and packages that they import inside functions only."""
NEVER = {
    "core": (CORE.values(), FOREIGN | {"pytest"}),
    "core, but for what converts or stores arrays": ([path for name, path in CORE.items() if name not in NUMPY_IN], {"numpy"}),
    "plain NumPy": ([CONFORMANCE / "bench" / "plain_numpy.py"], {"mha_core"}),
}
"""Files, and packages that they do not import."""


@pytest.mark.parametrize(("files", "packages"), LATE.values(), ids=LATE)
def test_some_packages_are_imported_inside_functions_only(files, packages):
    named = {name_of(path): {name.partition(".")[0] for name, function in imports(path) if function is None} for path in files}
    assert named and not {path: names & packages for path, names in named.items() if names & packages}


@pytest.mark.parametrize(("files", "packages"), NEVER.values(), ids=NEVER)
def test_some_packages_are_not_imported(files, packages):
    named = {name_of(path): {name.partition(".")[0] for name, _ in imports(path)} for path in files}
    assert named and not {path: names & packages for path, names in named.items() if names & packages}


def test_dispatch_imports_numpy_only_in_to_numpy():
    files = (ROOT / "mha_core" / "dispatch").glob("*.py")
    assert {function for path in files for name, function in imports(path) if name == "numpy"} <= {"to_numpy"}


def test_no_backend_folder_is_named_like_a_library():
    assert all(path.parent.name.startswith("mha_") for path in BACKENDS)


def test_no_file_is_longer_than_350_lines():
    def check(path):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350

    for_each(SOURCE, check)


@pytest.mark.parametrize("module", [mha_core, plugin], ids=lambda module: module.__name__)
def test_every_public_name_has_its_own_docstring(module):
    def check(name):
        doc = inspect.getdoc(getattr(module, name)) or ""
        assert doc.strip()
        assert not doc.startswith(f"{name}("), "dataclass and NamedTuple write this signature if there is no docstring"

    for_each({name: name for name in module.__all__}, check)


def test_all_lists_every_public_name_and_nothing_else():
    assert sorted(mha_core.__all__) == PUBLIC


def test_every_module_has_a_docstring():
    def check(path):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

    for_each(CORE, check)
