"""The option ``--share``: a rotating test is in the share that its name chooses, every other test in all of them."""

import re
import sys

import pytest
import shares
from project import ROOT
from suite import run

TESTS = """
import pytest

@pytest.mark.rotating
@pytest.mark.parametrize("at", range(12))
def test_rotating(at): pass

def test_always(): pass
"""


def test_a_share_has_its_rotating_tests_and_every_other_test(tmp_path):
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rotating\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "shares", "-p", "no:cacheprovider", "--collect-only"]
    said = run(command, "--share", "2/4", cwd=tmp_path).stdout
    names = [f"test_rotating[{at}]" for at in range(12)]
    share = [name for name in names if shares.share_of(f"test_sample.py::{name}") == 2]
    assert 0 < len(share) < 12
    assert re.findall(r"<Function (.*)>", said) == [*share, "test_always"]
    assert "rotating tests: share 2/4, as asked" in said


def test_the_commit_chooses_a_share_and_the_header_names_both():
    commit = run(["git", "rev-parse", "HEAD"], cwd=ROOT).stdout.strip()
    assert shares.chosen_share("auto") == (int(commit, 16) % 4 + 1, f"chosen by commit {commit[:12]}")


def test_another_share_is_an_error():
    with pytest.raises(pytest.UsageError, match="--share 5/4: expected auto or one of 1/4, 2/4, 3/4, 4/4"):
        shares.chosen_share("5/4")
