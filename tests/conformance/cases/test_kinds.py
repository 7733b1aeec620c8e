"""Kinds of values: what they draw, and rows whose values must go together."""

import numpy as np
import pytest

from mha_conformance.cases.kinds import Kind, below_one, between, in_turn, near, real, smallest, some, values_of


def drawn(kind, count=2000):
    rng = np.random.default_rng(0)
    return [kind.draw(rng) for _ in range(count)]


def test_integers_between_two_are_drawn_from_all_of_their_range():
    values = drawn(between(3, 40))
    assert {*values} == {*range(3, 41)}
    assert np.mean(np.array(values) % 8 == 0) > 0.3, "many lengths and widths are multiples of 8"
    assert np.mean(np.array(drawn(between(1, 4000))) < 64) > 0.4, "small ones are as frequent as great ones"


def test_integers_near_edges_are_on_both_sides_of_each():
    assert {*drawn(near(16, 64))} == {15, 16, 17, 63, 64, 65}


@pytest.mark.parametrize("sign", [1, -1])
def test_real_numbers_have_one_sign_and_many_sizes(sign):
    values = sign * np.array(drawn(real(1e-4, 1, sign=sign)))
    assert values.min() >= 1e-4 and values.max() <= 1
    assert all(np.mean((low <= values) & (values < 10 * low)) > 0.15 for low in (1e-4, 1e-3, 1e-2, 1e-1))


def test_numbers_below_one_are_near_it_as_often_as_far():
    values = 1 - np.array(drawn(below_one(1e-4, 1)))
    assert all(np.mean((low <= values) & (values < 10 * low)) > 0.15 for low in (1e-4, 1e-3, 1e-2, 1e-1))


def test_the_smallest_values_are_those_that_kinds_name():
    kinds = {"a": between(3, 9), "b": near(16, 32), "c": some("two", (5,), ()), "d": "plain"}
    assert smallest(kinds) == {"a": 3, "b": 15, "c": (5,), "d": "plain"}


def test_few_values_are_taken_in_turn_on_each_axis():
    """Drawn by chance, one of nine is missing from ten rows in nearly every design."""
    kinds = {"queries": near(128, 256, 512), "keys": near(128, 256, 512), "width": between(1, 3), "band": "none"}
    rng = np.random.default_rng(0)
    rows = [values_of(row, rng, lambda values: True) for row in in_turn([kinds] * 18, rng, lambda row: True)]
    for name in ("queries", "keys"):
        assert (
            sorted(row[name] for row in rows[:9]) == sorted(row[name] for row in rows[9:]) == sorted({*near(128, 256, 512).all})
        )
    assert any(row["queries"] != row["keys"] for row in rows), "each axis has an order of its own"
    assert all(row == kinds for row in in_turn([kinds], rng, lambda row: True)), "a design still knows the kinds"


def test_a_value_that_is_too_large_for_a_row_waits_for_the_next():
    rows = [{"keys": near(16, 64), "room": room} for room in (20, 100) * 6]
    taken = [*in_turn(rows, np.random.default_rng(1), lambda row: row["keys"] <= row["room"])]
    keys = [smallest(row)["keys"] for row in taken]
    assert max(keys[::2]) <= 17 and {*keys} == {15, 16, 17, 63, 64, 65}


def test_values_of_a_row_are_possible_together():
    row = {"queries": between(1, 100), "keys": between(1, 100), "band": "none"}
    rng = np.random.default_rng(0)
    found = [values_of(row, rng, lambda values: values["queries"] * values["keys"] <= 50) for _ in range(200)]
    assert all(values["queries"] * values["keys"] <= 50 for values in found)
    assert len({values["queries"] for values in found}) > 20


def test_the_smallest_values_are_left_where_no_others_are_possible():
    row = {"queries": between(1, 100), "keys": between(30, 100)}
    assert values_of(row, np.random.default_rng(0), lambda values: values["queries"] * values["keys"] < 31) == smallest(row)


def test_two_kinds_of_one_name_are_one():
    assert Kind("a", lambda rng: 1) == Kind("a", lambda rng: 2) != Kind("b", lambda rng: 1)
    assert str(between(1, 2)) == "1 to 2"
