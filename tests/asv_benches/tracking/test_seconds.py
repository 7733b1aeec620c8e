"""The gate by times: asv's verdicts, and what it says."""

import pytest
from project_clone import ATTEND

from tracking import seconds
from tracking.measure import Choice
from tracking.seconds import Cell, Verdict


@pytest.mark.asv
@pytest.mark.rotating
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_planted_slowdown_is_reported_by_backend_and_case(clone, backend):
    base = clone.git("rev-parse", "HEAD")
    clone.change(*ATTEND, "    for _ in range(20000): pass\n" + ATTEND[1], "slower")
    done = clone.run("gate", base, "--seconds", "--backend", backend, "--case", "tiny", status=Verdict.SLOWER)
    assert f"slower: {backend}, tiny call 1x1x8x8: " in done.stdout


def cell(before, after, slower=False, backend="numpy", samples=20):
    return Cell(backend, "a case", before, after, samples, slower)


def test_a_slowdown_and_nothing_measured_are_different_verdicts():
    numpy, both = Choice(["numpy"]), Choice(["numpy", "torch"])
    assert seconds.verdict([cell(1.0, 1.05)], numpy) == Verdict.AS_FAST == 0
    assert seconds.verdict([cell(1.0, 1.3, slower=True)], numpy) == Verdict.SLOWER == 1
    assert seconds.verdict([], numpy) == seconds.verdict([], Choice([])) == Verdict.NOT_MEASURED == 3
    assert seconds.verdict([cell(1.0, float("nan"))], numpy) == Verdict.NOT_MEASURED
    assert seconds.verdict([cell(1.0, 1.3, samples=6)], numpy) == Verdict.NOT_MEASURED
    assert seconds.verdict([cell(1.0, 1.05, samples=6)], numpy) == Verdict.AS_FAST
    assert seconds.verdict([cell(1.0, None)], numpy) == Verdict.NOT_MEASURED
    assert seconds.verdict([cell(None, 1.0)], numpy) == Verdict.NOT_MEASURED
    assert seconds.verdict([cell(1.0, 1.0)], both) == Verdict.NOT_MEASURED
    assert seconds.verdict([cell(1.0, 1.3, slower=True), cell(1.0, None)], both) == Verdict.SLOWER


def test_the_gate_names_what_it_found(capsys):
    choice = Choice(["numpy", "torch"])
    undecided = [
        Cell("numpy", "failing", 1.0, None),
        Cell("numpy", "newer", float("nan"), 1.0),
        Cell("numpy", "long", 1.0, 1.5, samples=6),
    ]
    seconds.show([cell(0.010, 0.013, slower=True), *undecided], choice, 1.1)
    printed = capsys.readouterr().out
    assert "slower: numpy, a case: 1.30x" in printed
    assert "not measured: numpy, failing: failed after" in printed
    assert "not measured: numpy, newer: skipped before" in printed
    assert "not measured: numpy, long: 1.50x, with too few samples" in printed
    assert "not measured: torch, in any case" in printed
