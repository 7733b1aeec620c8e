"""Schedules of learning rates."""

import math
import pickle
from functools import partial

import pytest
from refusals import assert_refused_in_words

from mha_core.train.schedules import warmup_cosine, warmup_linear

EACH = {"cosine": warmup_cosine, "linear": warmup_linear}
each_schedule = pytest.mark.parametrize("schedule", EACH.values(), ids=EACH)


@each_schedule
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 10), (4, 5), (10, 100)])
def test_it_rises_to_the_peak_and_falls_to_the_floor(schedule, warmup, total):
    rate = schedule(0.5, warmup=warmup, total=total, floor=0.1)
    rates = [rate(step) for step in range(total + 3)]
    assert rates[warmup] == max(rates) == 0.5
    assert rates[:warmup] == sorted(rates[:warmup]) and all(r > 0 for r in rates)
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[total:] == [0.1] * 3 and rates[total - 1] > 0.1


def test_the_cosine_is_that_of_the_paper():
    rate = warmup_cosine(0.5, warmup=20, total=120, floor=0.1)
    for current in range(101):
        expected = 0.1 + 0.5 * (0.5 - 0.1) * (1 + math.cos(current / 100 * math.pi))
        assert math.isclose(rate(20 + current), expected, rel_tol=1e-15)


def test_the_line_is_straight():
    rate = warmup_linear(0.5, warmup=20, total=120)
    assert [rate(step) for step in (45, 70, 95)] == [0.375, 0.25, 0.125]


@each_schedule
def test_it_can_be_pickled_and_compared(schedule):
    rate = schedule(0.5, warmup=2, total=9)
    assert pickle.loads(pickle.dumps(rate)) == rate != schedule(0.5, warmup=2, total=10)
    assert warmup_cosine(1, warmup=1, total=2) != warmup_linear(1, warmup=1, total=2)


@each_schedule
def test_settings_that_are_refused(schedule):
    refused = {
        "peak is -1; expected a number of at least 0": {"peak": -1},
        "peak is inf; expected a finite number": {"peak": math.inf},
        "warmup is float; expected an int": {"warmup": 2.0},
        "warmup is -1; expected an int of at least 0": {"warmup": -1},
        "total is 2; expected an int of at least 3": {"total": 2},
        "floor is -0.5; expected a number of at least 0": {"floor": -0.5},
        "floor is 2; expected at most peak = 1.0": {"floor": 2},
    }
    settings = {"peak": 1.0, "warmup": 2, "total": 9}
    assert_refused_in_words({message: partial(schedule, **(settings | wrong)) for message, wrong in refused.items()})
