"""The tests of each promise, read from the source: ours by the number in their name, the suite's by their mark."""

import ast
from functools import cache
from itertools import groupby

from project import ROOT

OURS = ROOT / "tests" / "core" / "test_promises.py"
SUITE = sorted((ROOT / "conformance" / "mha_conformance").glob("test_*.py"))


def held_by(promise):
    """Return (file, function) of every test of a promise: ours first, then the suite's."""
    ours = [(OURS, test.name) for test in _tests(OURS) if test.name.startswith(f"test_{promise}_")]
    return ours + [(path, test.name) for path in SUITE for test in _tests(path) if promise in _marked(path, test)]


def listing(promise):
    """Return the tests of a promise by file, as the Markdown list of docs/promises.md."""
    lines = []
    for path, tests in groupby(held_by(promise), lambda test: test[0].relative_to(ROOT).as_posix()):
        lines += [f"- [{path}](../{path}):\n", *(f"  - `{name}`\n" for _, name in tests)]
    return "".join(lines)


@cache
def _body(path):
    return ast.parse(path.read_text(encoding="utf-8")).body


def _tests(path):
    return [node for node in _body(path) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _marked(path, test):
    """Return the promises of a test: those of its own mark, or of its module's if it has no mark."""
    of_module = [node.value for node in _body(path) if isinstance(node, ast.Assign) and node.targets[0].id == "pytestmark"]
    return _promises(test.decorator_list) or _promises(of_module)


def _promises(marks):
    calls = [mark for mark in marks if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"]
    return [argument.value for call in calls for argument in call.args]
