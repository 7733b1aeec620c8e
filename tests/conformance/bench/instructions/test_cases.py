"""The counted cases: each is right on NumPy, and is of a kind that is timed."""

import pytest

from mha_conformance.bench.cases import CASES
from mha_conformance.bench.dispatch import Dispatch
from mha_conformance.bench.instructions.cases import COUNTED, FirstUse, OneLayer, SmallLayer

KINDS = {OneLayer: "Texts", SmallLayer: "Layer", FirstUse: "Import"}


@pytest.mark.parametrize("case", COUNTED)
def test_the_answer_is_checked(case):
    problem = COUNTED[case].problem
    work = problem.ours("numpy")
    check, answer = problem.judge(), work.answer()
    check(answer)
    with pytest.raises(AssertionError):
        check(not answer if isinstance(answer, bool) else [x + 1 for x in answer] if isinstance(answer, list) else answer + 1)


def test_every_kind_that_is_timed_is_counted():
    counted = {KINDS.get(type(each.problem), type(each.problem).__name__) for each in COUNTED.values()}
    assert counted == {type(problem).__name__ for problem in CASES.values()} | {Dispatch.__name__}
