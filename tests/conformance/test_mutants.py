"""The mutation operators, and a sample of the mutants of our modules: the suite finds each, or living.toml has the reason."""

import ast
import json
import sys
from textwrap import dedent

import numpy as np
import pytest
from mutants import effects
from mutants.living import FIELDS, Entry, Living
from mutants.operators import OPERATORS, mutants
from mutants.page import living_markdown, markdown
from mutants.run import every
from mutants.table import ELSEWHERE, LEFT_OUT, TABLE
from project import ROOT, SUPPORT
from suite import run

from mha_core.algebra.structure import Structure
from mha_core.plugin import AttentionProblem


def changes(operator, source):
    """Return the descriptions of the mutants that an operator makes of a source."""
    return [mutant.change for mutant in mutants(dedent(source)) if mutant.operator == operator]


def mutated(source, operator, change=""):
    """Return the namespace of the first mutant of a source by this operator whose description contains ``change``."""
    mutant = next(x for x in mutants(dedent(source)) if x.operator == operator and change in x.change)
    namespace = {**effects.EFFECTS, "Array": np.ndarray}
    exec(compile(mutant.tree, "mutant", "exec"), namespace)
    return namespace


# what each operator makes of a tiny function

MADE = {
    "drop": (
        "def f(x, w):\n    x += w\n    g(x)\n    x[0] = 1\n    x = x * 2\n    y = 3\n    return h(x, axis=1, copy=False)",
        [
            "without x += w",
            "without g(x)",
            "without x[0] = 1",
            "without x = x * 2",
            "h(x, axis=1, copy=False) -> h(x, copy=False)",
        ],
    ),
    "shift": (
        "def f(x, n):\n    return x[1:n], range(n), 0.5, True, 'a'",
        ["x[1:n] -> x[2:n]", "x[1:n] -> x[1:n - 1]", "range(n) -> range(n - 1)"],
    ),
    "swap": (
        "def f(a, b):\n    return g(a, b) if a < b and a == 1 else min(-a, b) | (a - b)",
        [
            "g(a, b) -> g(b, a)",
            "a < b and a == 1 -> a < b or a == 1",
            "a < b -> a <= b",
            "a == 1 -> a != 1",
            "min(-a, b) | a - b -> min(-a, b) & a - b",
            "min(-a, b) -> max(-a, b)",
            "min(-a, b) -> min(a, b)",
            "a - b -> a + b",
        ],
    ),
    "ignore": (
        "def f(a):\n    if a is None:\n        return [x for x in a if x]\n    return a and f(a)",
        ["always a is None", "never a is None", "always x", "a and f(a) -> f(a)", "a and f(a) -> a"],
    ),
    "alias": (
        "def f(x, b, n):\n    return x[b], x[..., n : n + 2, 0], x[0], x[:n], NAMES[b]",
        ["x[b] reads the first for b", "x[..., n:n + 2, 0] reads the first for n:n + 2"],
    ),
    "keep": ("def f(x):\n    return x\n\ndef g(x):\n    yield x", ["f keeps its first result"]),
    "round": ("def f(x) -> Array:\n    return x\n\ndef g(x) -> int:\n    return 1", ["f rounds its result"]),
    "beyond": ("def f(x) -> Array:\n    return x", ["f turns its rows beyond 64", "f turns its rows beyond 1000"]),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_changes_a_function_as_it_says(operator):
    source, expected = MADE[operator]
    assert set(expected) <= set(changes(operator, source))
    if operator != "shift":  # which changes every number
        assert sorted(changes(operator, source)) == sorted(expected)


def test_numbers_are_shifted_but_not_booleans_and_strings():
    source = "def f():\n    return g(7), g(0.5), g(0.0), g(True), g('a')"
    assert changes("shift", source) == ["g(7) -> g(8)", "g(0.5) -> g(0.505)", "g(0.0) -> g(0.01)"]


def test_cases_are_never_matched_except_the_last_resort():
    source = "def f(x):\n    match x:\n        case 1:\n            return 2\n        case _:\n            return 3"
    assert changes("ignore", source) == ["never case 1"]
    assert mutated(source, "ignore")["f"](1) == 3


def test_text_annotations_imports_errors_and_types_are_left_alone():
    source = '''
        """Text 1 < 2."""
        from m import a
        __all__ = ["f" + "g"]
        Limits = tuple[int | None, int | None]
        def f(x: tuple[int, 3] = None) -> "1 < 2":
            """More < text."""
            assert x < 1, 1
            if x < 2:
                raise ValueError(f"{x - 1}")
            return isinstance(x, int)
    '''
    assert {mutant.operator for mutant in mutants(dedent(source))} == {"keep"}


def test_a_mutant_has_one_change_its_line_and_a_key_of_its_own():
    source = "def f(a, b):\n    return (a + b,\n            a + b)\n"
    of_swap = [mutant for mutant in mutants(source) if mutant.operator == "swap"]
    assert [mutant.line for mutant in of_swap] == [2, 3]
    assert [ast.unparse(mutant.tree).count("a - b") for mutant in of_swap] == [1, 1]
    twice = [mutant.key for mutant in mutants("def f(a):\n    return a + 1, a + 1\n")]
    assert len(set(twice)) == len(twice)


# what mutants do when they run


def test_an_alias_reads_the_first():
    source = "def f(x, i, j):\n    return x[i], x[i:j], x[i:], x[..., i]"
    x = np.arange(20).reshape(5, 4)
    for at, expected in enumerate([x[0], x[:2], x[:3], x[..., 0]]):
        change = ["x[i] reads", "x[i:j]", "x[i:]", "x[..., i]"][at]
        assert np.array_equal(mutated(source, "alias", change)["f"](x, 2, 4)[at], expected)


def test_a_kept_result_is_that_of_the_first_arguments_of_the_same_shapes():
    f = mutated("def f(x, n=1):\n    return x + n", "keep")["f"]
    assert f(np.zeros(3)).sum() == 0 + 3
    assert f(np.ones(3)).sum() == 3, "the first result"
    assert f(np.ones(4)).sum() == 8 and f(np.ones(3), n=2).sum() == 9, "other shapes and numbers have results of their own"


def test_a_rounded_result_has_few_digits():
    y, n = mutated("def f(x) -> Array:\n    return x, 3", "round")["f"](np.array([1 / 3]))
    assert y.dtype == np.float64 and y[0] == np.float16(1 / 3) and n == 3


def test_a_fault_beyond_an_edge_occurs_only_there():
    f = mutated("def f(x) -> Array:\n    return x", "beyond", "64")["f"]
    short, long = np.arange(64), np.arange(65)
    assert np.array_equal(f(short), short) and np.array_equal(f(long), np.roll(long, 1))


def test_arguments_of_our_own_classes_count_with_their_arrays():
    """Effects look into a problem, but not into the namespace that it has: a module has everything."""
    problems = [standard_problem(length) for length in (64, 65)]
    f = mutated("def f(p) -> Array:\n    return p.query", "beyond", "64")["f"]
    assert np.array_equal(f(problems[0]), problems[0].query) and not np.array_equal(f(problems[1]), problems[1].query)
    g = mutated("def g(p):\n    return p", "keep")["g"]
    assert g(problems[0]) is g(standard_problem(64)) is problems[0] and g(problems[1]) is problems[1]


def standard_problem(length):
    x = np.random.default_rng(0).normal(size=(1, length, 4))
    return AttentionProblem(np, x, x, x, Structure(range(length)), 0.5)


# mutants that live


def test_an_entry_matches_by_the_source_of_the_line_not_its_number():
    record = dict(zip(FIELDS, ("m", "f", "shift", "_TILE = 5", "_TILE = 5 -> _TILE = 6"), strict=True)) | {"line": 7}
    living = Living((Entry("m", "only speed", text="_TILE = 5"), Entry("m", "unreachable", operator="drop")))
    assert living.reason(record) == "only speed" and living.reason(record | {"text": "other"}) is None
    assert living.unused([tuple(record[name] for name in FIELDS)]) == [living.entries[1]]


def test_every_entry_is_a_mutant_of_today():
    living = Living.read()
    assert living.unused(mutant.key for module in TABLE for mutant in every(module)) == []
    assert all(entry.reason[-1:] in ("", ".") and entry.function + entry.text + entry.change for entry in living.entries)


def test_functions_judged_elsewhere_exist():
    for module, names in ELSEWHERE.items():
        functions = {mutant.function for mutant in _all(module)}
        assert all(any(f == name or f.startswith(f"{name}.") for f in functions) for name in names), module


def test_every_module_of_the_algebra_and_of_the_kernels_is_mutated_or_left_out_for_a_reason():
    """New code brings its mutants."""
    folders = {"mha_core.algebra": ROOT, "mha_numpy": ROOT / "backends", "mha_torch": ROOT / "backends"}
    files = [(root, path) for name, root in folders.items() for path in (root / name.replace(".", "/")).rglob("*.py")]
    found = {".".join(path.relative_to(root).with_suffix("").parts) for root, path in files if path.name != "__init__.py"}
    assert found == {*TABLE, *LEFT_OUT} and not {*TABLE} & {*LEFT_OUT}


def _all(module):
    path = ROOT / ("" if module.startswith("mha_core") else "backends") / (module.replace(".", "/") + ".py")
    return mutants(path.read_text(encoding="utf-8"), module)


def test_the_page_says_which_mutants_wait_for_more_of_the_suite():
    record = dict(zip(FIELDS, ("mha_numpy.gelu", "f", "shift", "x = 5", "x = 5 -> x = 6"), strict=True)) | {"killed": ""}
    records = [record | {"step": step} for step in ("gelu tiles float32", "suite of numpy")]
    where = {"processor": {"model": "A", "cores": 2, "flags": [], "system": "B"}, "versions": {"commit": "123abc"}}
    results = {"commands": [], "mutants": records, "enumerated": {"mha_numpy.gelu": 9}, **where}
    first, second = (line for line in living_markdown(results, Living(())).splitlines() if "none yet**" in line)
    assert first.endswith("not judged again yet |") and second.endswith("**none yet** |")
    assert "Processor: A, 2 cores, B. Versions: commit 123abc." in markdown(results, Living(()))


# runs


def judged(tmp_path, *arguments):
    """Run the command; return its exit status, its output and the records it wrote."""
    to = tmp_path / "results.json"
    done = run([sys.executable, "-m", "mutants.run"], *arguments, "--json", to, cwd=SUPPORT)
    assert to.exists(), done.stderr
    return done.returncode, done.stdout, json.loads(to.read_text(encoding="utf-8"))


@pytest.mark.full
def test_a_mutated_kernel_is_found_and_a_right_one_is_not(tmp_path):
    """Before any mutant, the command judges the module itself, and ends if that fails."""
    arguments = [
        "mha_numpy.gelu",
        "--cap",
        "1000",
        "--only",
        "np.subtract(out, p, out=out)",
        "--dtypes",
        "float32",
    ]
    status, _, results = judged(tmp_path, *arguments)
    (*killed,) = results["mutants"]
    assert status == 0 and len(killed) >= 3
    assert {record["killed"] for record in killed} <= {"AssertionError", "TypeError", "ValueError"}
    page = markdown(results, Living.read())
    assert f"Of {len(killed)} mutants, {len(killed)} were killed: 100.0%" in page and "--only" in page


@pytest.mark.full
@pytest.mark.rotating
def test_the_suite_finds_every_mutant_of_a_sample_that_is_not_known_to_live(tmp_path):
    """The sample is part of that on the page, and judged as there: what lives is judged again, by more of the suite."""
    sample = ["--sample", "8", "--cap", "12", "-j", "2"]
    judged(tmp_path, *sample, "--quick", "--dtypes", "float32")
    status, output, results = judged(tmp_path, *sample, "--suite", "--again")
    living = Living.read()
    lives = [x for x in results["mutants"] if not x["killed"] and living.reason(x) is None]
    assert status == 0 and not lives, output
