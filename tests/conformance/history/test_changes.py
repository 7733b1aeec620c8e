"""Lasting changes of a line: what counts as one, and when a line cannot be judged."""

import json
from dataclasses import replace

import pytest
from project import ROOT
from sample_history import COUNTS, PROCESSOR, SLOWER, TIME, line, measured, only, steady

from mha_conformance.history.changes import RULES, TIMES, beyond_rule, judged, latest

LIMIT = TIMES.tolerance


def changes(series, machine):
    verdict = judged(series, machine)
    assert verdict.why_not == ""
    return verdict.changes


def test_a_change_is_of_one_backend_in_one_case(machine, project):
    found = [change for each in machine.series for change in judged(each, machine).changes]
    (worse,) = [change for change in found if change.worse]
    assert found == [worse] and worse.series is line(machine, TIME, "short", "torch")
    assert (worse.good.hash, worse.bad.hash, worse.suspects) == (project.hashes[7], project.hashes[9], 2)
    assert worse.before == pytest.approx(0.020, rel=0.01) and worse.after == pytest.approx(0.028, rel=0.01)
    assert worse.factor == pytest.approx(SLOWER, rel=0.01)


@pytest.mark.parametrize(
    ("levels", "factors"),
    [
        ([1, 1, 1, 1, 1, 1, 1, 1], []),
        ([2, 2, 2, 2, 1, 1, 1, 1], [0.5]),
        ([1, 1, 2, 2, 2, 1, 1, 1], []),
        ([2, 2, 1, 1, 1, 2, 2, 2], [2]),
        ([1, 1, 2, 2, 2, 1.5, 1.5, 1.5], [1.5]),
        ([1, 1, 1, 1, *[1 + 0.8 * LIMIT] * 4], []),
        ([1, 1, 1, 1, *[1 + 2 * LIMIT] * 4], [1 + 2 * LIMIT]),
        ([1, 1, 1, None, None, 2, 2, 2], [2]),
        ([1, 1, 1, 1, 1, 1, 1, 2], [2]),
    ],
    ids=["level", "better", "made good", "better for a while", "half made good", "small", "larger", "across a gap", "the last"],
)
def test_a_change_counts_where_it_stays(small, levels, factors):
    measured(small, [level and level * steady(at) for at, level in enumerate(levels)])
    machine = only(small)
    found = changes(machine.series[0], machine)
    assert [change.factor for change in found] == pytest.approx(factors, rel=0.01)
    assert [change.worse for change in found] == [factor > 1 for factor in factors]


def test_a_noisy_line_has_no_changes_within_its_noise(small):
    measured(small, [1, 1.4, 0.8, 1.2, 0.9, 1.5, 0.7, 1.3])
    machine = only(small)
    assert changes(machine.series[0], machine) == ()


def test_a_change_of_processor_is_no_change_and_hides_none(small):
    """The values of each processor are judged by themselves."""
    levels, processors = [1, 2] * 8, ("fast", "slow") * 8
    values = tuple(level * steady(at) for at, level in enumerate(levels))
    measured(small, values[:8])
    machine = only(small)
    commits = tuple(replace(machine.commits[at % 8], place=at) for at in range(16))
    machine = replace(machine, processors=processors, commits=commits)
    series = replace(machine.series[0], values=values)
    assert changes(series, machine) == ()
    slower = tuple(value * (1.5 if at >= 8 and at % 2 == 0 else 1.0) for at, value in enumerate(values))
    (change,) = changes(replace(series, values=slower), machine)
    assert (change.good, change.bad) == (commits[6], commits[8])


def test_values_of_an_unknown_processor_are_never_compared(small):
    measured(small, [1, 1, 1, 1, 2, 2, 2, 2])
    machine = replace(only(small), processors=("",) * 8)
    verdict = judged(machine.series[0], machine)
    assert verdict.changes == () and verdict.why_not == "the processor is not known well enough"
    assert latest(machine.series[0], machine) is None


def test_a_processor_whose_family_was_not_recorded_is_unknown(small):
    """Its name alone fits several generations."""
    measured(small, [1.0, 1.0])
    for commit, facts in zip(small.hashes, (PROCESSOR, {**PROCESSOR, "family": None}), strict=False):
        small.facts(commit, {"processor": {name: fact for name, fact in facts.items() if fact is not None}})
    assert [bool(each) for each in only(small).processors] == [True, False]


def test_a_line_with_few_values_on_each_processor_is_not_judged(small):
    measured(small, [1, 1, 1, 1, 2, 2, 2, 2])
    machine = replace(only(small), processors=("a",) * 5 + ("b",) * 3)
    assert judged(machine.series[0], machine).why_not == "5 values on one processor; at least 6 are needed"


def test_no_bytes_after_no_bytes_is_no_change(small):
    """Nor is less than a megabyte, however often it goes into the values."""
    benchmark = replace(line_of(small, [0.0, 0.0, 0.0, 0.0, 4e5, 4e5, 4e5, 4e5]), unit="bytes")
    machine = only(small)
    series = replace(machine.series[0], benchmark=benchmark)
    assert changes(series, machine) == ()
    (change,) = changes(replace(series, values=(0.0,) * 4 + (3e6,) * 4), machine)
    assert change.factor is None and change.worse


def test_memory_is_compared_whatever_the_processor(small):
    benchmark = replace(line_of(small, [1.0] * 4 + [2.0] * 4), unit="bytes")
    machine = replace(only(small), processors=("a", "", "b", "", "", "c", "", "d"))
    series = replace(machine.series[0], benchmark=benchmark, values=(15e6,) * 4 + (63e6,) * 4)
    (change,) = changes(series, machine)
    assert (change.bad, change.factor) == (machine.commits[4], pytest.approx(4.2))
    assert latest(series, machine).factor == 1.0


def line_of(project, values):
    """Write the values, and return the benchmark of their line."""
    measured(project, values)
    return only(project).series[0].benchmark


def test_two_counts_are_enough(small):
    benchmark = replace(line_of(small, [1000.0, 1011.0]), unit="instructions")
    machine = only(small)
    (change,) = changes(replace(machine.series[0], benchmark=benchmark), machine)
    assert change.factor == pytest.approx(1.011)


def test_the_newest_commit_is_compared_with_the_value_before_on_its_processor(small):
    measured(small, [1.0, 3.0, 1.04])
    machine = replace(only(small), processors=("a", "b", "a"))
    change = latest(machine.series[0], machine)
    assert (change.before, change.after, change.suspects) == (1.0, 1.04, 2) and not beyond_rule(change)
    assert beyond_rule(replace(change, after=1.06))
    behind = replace(machine.series[0], values=(1.0, 3.0, None))
    assert latest(behind, machine) is None


@pytest.mark.parametrize(
    ("values", "factors"),
    [
        ([1000.0, 1100.0, 1200.0, 1300.0, 1400.0, 1500.0], [1.1, 1.091, 1.083, 1.077, 1.071]),
        ([1000.0 + 9 * at for at in range(8)], [1.018]),
    ],
    ids=["steps at every commit", "a slow rise"],
)
def test_every_step_of_counts_is_real_and_a_slow_rise_is_found(small, values, factors):
    benchmark = replace(line_of(small, values), unit="instructions")
    machine = only(small)
    found = changes(replace(machine.series[0], benchmark=benchmark), machine)
    assert [change.factor for change in found][: len(factors)] == pytest.approx(factors, abs=5e-3)


def test_counts_with_other_libraries_are_not_compared(small):
    """Whatever the machine, its processor counts as valgrind's."""
    for commit, version in zip(small.hashes, ("2.4.6", "2.5.0"), strict=False):
        small.measure(commit, COUNTS, {("numpy", "case"): 1000})
        small.facts(commit, {"processor": PROCESSOR, "versions": {"numpy": version, "valgrind": "3.19.0"}})
    machine = only(small)
    counters = tuple(f"valgrind's processor, valgrind 3.19.0, numpy {version}" for version in ("2.4.6", "2.5.0"))
    assert machine.processors_of(machine.series[0].benchmark) == machine.measured_on == counters
    assert latest(machine.series[0], machine) is None


def test_rules_are_of_the_units_that_the_benchmarks_have():
    known = json.loads((ROOT / "asv_benches" / "results" / "benchmarks.json").read_text(encoding="utf-8"))
    assert RULES.keys() <= {each["unit"] for each in known.values() if isinstance(each, dict)}
