"""Tests stand in rooms: each module has a test file of its name there, or the README of the room says where it is tested."""

import ast
import re
from collections import Counter

import pytest
from project import ROOT

TESTS = ROOT / "tests"
ROOMS = {
    "core": "mha_core",
    "text": "text/mha_text",
    "conformance": "conformance/mha_conformance",
    "asv_benches": "asv_benches",
    **{f"backends/{name}": f"backends/{name}" for name in ("mha_numpy", "mha_torch", "mha_cupy", "mha_mpi")},
    **{f"backends/{name}": f"backends/{name}/{name}" for name in ("mha_native", "mha_jax", "mha_dask", "mha_ndonnx")},
}
"""The package of each room."""
MOST = 45  # Python files in one folder


def modules(package):
    """Return the modules that have logic of their own: those that define a function or a class."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if (ROOT / "asv_benches" / "env") in path.parents:  # commits that asv has installed
            continue
        if path.name not in ("__init__.py", "__main__.py") and not path.name.startswith("test_"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body):
                yield path


@pytest.mark.parametrize("room", ROOMS)
def test_each_module_has_its_tests(room):
    tested = {path.name for path in (TESTS / room).rglob("test_*.py")}
    page = TESTS / room / "README.md"
    listed = page.read_text(encoding="utf-8") if page.exists() else ""
    paths = [path for path in modules(ROOMS[room]) if f"test_{path.name}" not in tested]
    missing = [name for path in paths if f"`{(name := path.relative_to(ROOT / ROOMS[room]).as_posix())}`" not in listed]
    assert not missing, f"without a test file of their name; say in tests/{room}/README.md where they are tested: {missing}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_names_files_that_exist(room):
    page = TESTS / room / "README.md"
    for line in page.read_text(encoding="utf-8").splitlines() if page.exists() else ():
        for word in line.split("`")[1::2]:
            if word.endswith(".py"):
                where = ROOT / ROOMS[room], TESTS / room, ROOT
                assert any((folder / word).exists() for folder in where), f"{page}: {word} does not exist"


def test_no_folder_is_a_heap():
    counts = Counter(path.parent for path in TESTS.rglob("*.py"))
    assert max(counts.values()) <= MOST


def test_no_test_imports_a_test():
    imported = re.compile(r"^\s*(?:from|import) (?:test_|conftest\b)", re.MULTILINE)
    assert not [path for path in TESTS.rglob("test_*.py") if imported.search(path.read_text(encoding="utf-8"))]
