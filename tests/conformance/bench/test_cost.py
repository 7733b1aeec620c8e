"""The cost of a call relative to plain NumPy, by a clock that is not the machine's."""

import pytest

from mha_conformance.bench import cost


def test_the_cost_is_the_median_of_ratios_in_turns(monkeypatch):
    """The clock slows down for a while: it slows both alike, except in the turns in which that begins."""
    seconds, turns = {"ours": 0.002, "plain": 0.001}, []

    def timed(work, calls):
        turns.append(work)
        return seconds[work] * calls * (7.0 if 20 < len(turns) < 30 else 1.0)

    monkeypatch.setattr(cost, "timed", timed)
    assert cost.cost("ours", "plain", sample=0.01, seconds=60.0, most=9) == pytest.approx(2.0)
    assert turns[-8:] == ["ours", "plain", "plain", "ours"] * 2
