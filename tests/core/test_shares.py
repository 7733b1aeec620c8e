"""The option ``--share``: each rotating test is in exactly one share, every other test in all of them."""

import sys

import shares
from project import ROOT
from suite import run

TESTS = """
import pytest

@pytest.mark.rotating
@pytest.mark.parametrize("at", range(12))
def test_rotating(at): pass

@pytest.mark.rotating("word")
@pytest.mark.parametrize("at", range(3))
def test_together(at): pass

def test_always(): pass
"""


def collected(folder, share):
    """Return what pytest says when it collects a share of 15 rotating tests, three of them together and of one that is not."""
    (folder / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = rotating(word)\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "shares", "-p", "no:cacheprovider", "--collect-only"]
    return run(command, "--share", share, cwd=folder)


def test_each_rotating_test_is_in_one_share_and_every_other_test_in_all(tmp_path):
    outputs = [collected(tmp_path, f"{number}/4").stdout for number in (1, 2, 3, 4)]
    counts = [sum(f"test_rotating[{at}]" in output for output in outputs) for at in range(12)]
    together = sorted(output.count("test_together") for output in outputs)
    assert counts == [1] * 12 and together == [0, 0, 0, 3] and all("test_always" in output for output in outputs)
    assert all(f"rotating tests: share {number}/4, as asked" in output for number, output in enumerate(outputs, 1))


def test_the_commit_chooses_a_share_and_the_header_names_both():
    commit = run(["git", "rev-parse", "HEAD"], cwd=ROOT).stdout.strip()
    assert shares.chosen_share("auto") == (int(commit, 16) % 4 + 1, f"chosen by commit {commit[:12]}")


def test_another_share_is_an_error(tmp_path):
    done = collected(tmp_path, "5/4")
    assert done.returncode == 4 and "--share 5/4: expected auto or one of 1/4, 2/4, 3/4, 4/4" in done.stderr
