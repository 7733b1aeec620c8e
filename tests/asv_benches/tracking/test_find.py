"""Bisection by counts: the commit that is found, and when there is none to find."""

import pytest
from project_clone import ATTEND, only_cases

from mha_conformance.bench.instructions.count import Count
from tracking import find
from tracking.project import Refused

CASE = "attention 1x2x256x64"


def line_of(monkeypatch, counts):
    """Let `find` see these counts, and return the line of their commits."""
    line = [f"{at:08}" for at in range(len(counts))]
    by_commit = dict(zip(line, counts, strict=True))
    monkeypatch.setattr(find, "counted", lambda commit, backends, cases: {"numpy": {CASE: by_commit[commit]}})
    return line


@pytest.mark.parametrize("place", range(1, 9))
def test_the_commit_is_found_in_few_counts(monkeypatch, place):
    line = line_of(monkeypatch, [Count(1000 + at % 3 + 50 * (at >= place), 0) for at in range(9)])
    found = find.find(line, "numpy", CASE)
    assert (found.good, found.bad) == (line[place - 1], line[place])
    assert found.after - found.before >= 48 and found.tried <= 6


def test_a_line_whose_ends_are_alike_has_nothing_to_find(monkeypatch):
    line = line_of(monkeypatch, [Count(1000, 0), Count(2000, 0), Count(1009, 0)])
    with pytest.raises(Refused, match=r"runs 1,000 instructions at 00000000 and 1,009 at 00000002: no more than 1\.0% apart"):
        find.find(line, "numpy", CASE)


def test_a_commit_that_cannot_be_counted_is_left_out_and_an_end_is_named(monkeypatch):
    died = Count(wrong="its process died")
    line = line_of(monkeypatch, [Count(1000, 0), Count(1000, 0), died, died, Count(1100, 0), Count(1100, 0)])
    found = find.find(line, "numpy", CASE)
    assert (found.good, found.bad) == (line[1], line[4])
    line = line_of(monkeypatch, [Count(1000, 0), died])
    with pytest.raises(Refused, match=f"00000001 cannot be counted on numpy in '{CASE}': its process died"):
        find.find(line, "numpy", CASE)


@pytest.mark.asv
@pytest.mark.rotating
def test_find_names_the_commit_its_subject_and_the_function(clone):
    only_cases(clone, "dispatch of attention")
    good = clone.git("rev-parse", "HEAD")
    clone.change("mha_core/__init__.py", "0.1.0", "0.1.1", "before it")
    clone.append(ATTEND[0], "\n\ndef _more():\n    return None\n")
    bad = clone.change(ATTEND[0], ATTEND[1], "    _more()\n" + ATTEND[1], "one call more")
    clone.change("mha_core/__init__.py", "0.1.1", "0.1.2", "after it")
    clone.change("mha_core/__init__.py", "0.1.2", "0.1.3", "and another")
    done = clone.run("find", "dispatch of attention", "numpy", "--good", good, status=0)
    assert f"{bad[:7]}" in done.stdout and "one call more" in done.stdout
    assert "bytecode instructions in mha_core.ops.attention._more (0 to " in done.stdout
