"""The tools in tests/support that make and CI run: shares of tests, coverage by package, and the recorded public surface."""

import difflib
import re
import sys

import pytest
import shares
from package_coverage import package
from package_coverage import shares as coverage_of
from project import ROOT
from public_surface import PAGE, RECORDED, surface, written
from suite import run

TESTS = """
import pytest

@pytest.mark.rotating
@pytest.mark.parametrize("at", range(12))
def test_rotating(at): pass

@pytest.mark.rotating("together")
def test_first(): pass

@pytest.mark.rotating("together")
def test_second(): pass

def test_always(): pass
"""
NUMBER = shares.share_of("together")


def test_a_share_has_its_rotating_tests_and_every_other_test(tmp_path):
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rotating(word)\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "shares", "-p", "no:cacheprovider", "--collect-only"]
    said = run(command, "--share", f"{NUMBER}/{shares.COUNT}", cwd=tmp_path).stdout
    names = [f"test_rotating[{at}]" for at in range(12)]
    share = [name for name in names if shares.share_of(f"test_sample.py::{name}") == NUMBER]
    assert 0 < len(share) < 12
    assert re.findall(r"<Function (.*)>", said) == [*share, "test_first", "test_second", "test_always"]
    assert f"rotating tests: share {NUMBER}/{shares.COUNT}, as asked" in said


def test_the_commit_chooses_a_share_and_the_header_names_both():
    commit = run(["git", "rev-parse", "HEAD"], cwd=ROOT).stdout.strip()
    assert shares.chosen_share("auto") == (int(commit, 16) % shares.COUNT + 1, f"chosen by commit {commit[:12]}")


def test_another_share_is_an_error():
    with pytest.raises(pytest.UsageError, match=r"--share 13/12: expected auto or one of 1/12, 2/12, .*, 12/12"):
        shares.chosen_share("13/12")


def summary(*counts):
    return {"summary": dict(zip(("covered_lines", "num_statements", "covered_branches", "num_branches"), counts, strict=True))}


def test_files_of_a_package_are_added():
    files = {"mha_core/algebra/a.py": summary(8, 10, 1, 4), "mha_core/algebra/b.py": summary(2, 10, 0, 0)}
    assert coverage_of({"files": files | {"mha_core/empty.py": summary(0, 0, 0, 0)}}) == {
        "mha_core": (1.0, 1.0),
        "mha_core.algebra": (0.5, 0.25),
    }


def test_a_package_is_named_as_it_is_imported():
    names = {
        "mha_core/__init__.py": "mha_core",
        "mha_core/dispatch/keys/x.py": "mha_core.dispatch",
        "backends/mha_numpy/attention/tiles.py": "mha_numpy.attention",
        "text/mha_text/models/bert.py": "mha_text.models",
        "conformance/mha_conformance/judge/held.py": "mha_conformance.judge",
    }
    assert {path: package(path) for path in names} == names


def test_the_public_surface_is_as_recorded():
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    changes = "\n".join(difflib.unified_diff(recorded, surface(), "recorded", "now", lineterm="", n=1))
    assert not changes, (
        f"the public surface changed:\n{changes}\n"
        "If users are meant to see this, run `python tests/support/public_surface.py` and commit it."
    )


def test_the_contract_of_plugins_is_as_its_page_says():
    page = PAGE.read_text(encoding="utf-8")
    changes = "\n".join(difflib.unified_diff(page.splitlines(), written(page).splitlines(), "page", "now", lineterm="", n=1))
    assert not changes, (
        f"the contract of plugins changed:\n{changes}\n"
        "Within a version it only grows: if this is an addition, run `python tests/support/public_surface.py` and commit it."
    )
