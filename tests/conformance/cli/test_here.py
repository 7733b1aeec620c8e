"""``mha bench --here``: what kernels of other distributions bring, by times and by an estimate, and the sentences on it."""

import json
from dataclasses import replace
from functools import partial

import pytest
import sample_contenders as sample
from command import COMMAND, run
from native import BUILT, needs_native
from processes import ALONE, printed
from project import PATHS
from sample_kernels import Plugin, a_kernel, registered

from mha_conformance.bench.compare import Compared, Contender, compare
from mha_conformance.bench.limits import MATRIX
from mha_conformance.bench.rounds import QUICK
from mha_conformance.cli import bench, here
from mha_conformance.cli.here import Gain

mha = partial(run, "bench", "--here")
FLOPS = here.PROBLEM.limit.amount
INSTALL = "pip install ./backends/mha_native, in a checkout of mha-core"


@pytest.fixture
def entry(monkeypatch):
    """A known distribution whose kernels reached 80% of the product rate on numpy, on processors like this one."""
    entry = {"kernel": "native", "install": "pip install ./backends/mha_native", "reached": {"numpy": 0.8}}
    entry |= {"kernels": {"numpy": ["attention"], "torch": ["attention"]}, "measured_on": ["m68k"]}
    monkeypatch.setattr(here.known, "distributions", lambda: {"mha-native": entry})
    monkeypatch.setattr(here.platform, "machine", lambda: "m68k")
    return entry


def test_an_installed_distribution_is_compared_in_the_same_rounds():
    times = {("numpy", ""): [1.0, 9.0, 4.0], ("numpy", "fast"): [2.0, 10.0, 8.0], ("torch", "fast"): [1.0, 1.0]}
    with registered(Plugin(), "mha_native"):  # so that it is not said to be absent
        assert list(here.gains(times, {})) == [Gain("fast", "numpy", True, 0.5)]


def test_a_distribution_that_is_not_installed_is_estimated_from_the_product_rate_here(entry):
    times, limits = {("numpy", ""): [3.0, 2.0, 1.0]}, {"numpy": {MATRIX: FLOPS}}
    assert list(here.gains(times, limits)) == [Gain("mha-native", "numpy", False, 1 / 0.8 / 2.0)]


def test_without_a_share_that_was_measured_on_such_a_processor_there_is_no_estimate(entry):
    times, limits = {("numpy", ""): [1.0], ("torch", ""): [1.0]}, {name: {MATRIX: FLOPS} for name in ("numpy", "torch")}
    assert [gain.ratio for gain in here.gains(times, limits)] == [1 / 0.8, None]
    assert [gain.ratio for gain in here.gains(times, {})] == [None, None]
    entry["measured_on"] = ["vax"]
    assert [gain.ratio for gain in here.gains(times, limits)] == [None, None]


ESTIMATE = (
    "mha-native, which is not installed, would take about 0.5 of the time that numpy takes now, by an estimate from the "
    "product rate measured here and the least share of it in docs/peers.md (80% on numpy), and has kernels for torch, "
    f"for which there is no estimate on this machine: {INSTALL}"
)
NO_ESTIMATE = (
    f"mha-native, which is not installed, has kernels for torch, for which there is no estimate on this machine: {INSTALL}"
)
BOTH = "fast takes 0.41 of the time that numpy and 1.00 of the time that torch takes without it"


@pytest.mark.parametrize(
    ("gains", "sentence"),
    [
        ([Gain("fast", "numpy", True, 0.412)], "fast takes 0.41 of the time that numpy takes without it"),
        ([Gain("fast", "numpy", True, 0.412), Gain("fast", "torch", True, 1.0)], BOTH),
        ([Gain("mha-native", "numpy", False, 0.512), Gain("mha-native", "torch", False, None)], ESTIMATE),
        ([Gain("mha-native", "torch", False, None)], NO_ESTIMATE),
    ],
)
def test_there_is_a_sentence_for_each_distribution(entry, gains, sentence):
    other = "other takes 2.00 of the time that numpy takes without it"
    assert list(here.sentences([*gains, Gain("other", "numpy", True, 2.0)])) == [sentence, other]


@pytest.fixture
def measured(monkeypatch):
    """Seconds of each contender; those of "torch" are wrong."""

    def compared(problem, baseline, contenders, effort, start):
        assert baseline is None
        seconds = {each.name: [0.01, 0.02, 0.03] for each in contenders if each.name != "torch"}
        return Compared(seconds, {each.name: "off" for each in contenders if each.name == "torch"}, {})

    monkeypatch.setattr(here, "compare", compared)
    monkeypatch.setattr(here, "measured", lambda names, *_: {name: {MATRIX: FLOPS / 0.01} for name in names})
    monkeypatch.setattr(bench, "busy", lambda: 0.0)


def test_the_command_has_a_row_for_each_backend_with_and_without_kernels_of_others(measured, entry):
    with registered(Plugin([a_kernel()]), "fast"):
        done = mha("--backend", "numpy", "--json")
        told = mha("--backend", "numpy").stdout
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert [(row["backend"], row["seconds"], row["reached"]) for row in results["rows"]] == [
        ("numpy", 0.02, 0.5),
        ("numpy without fast", 0.02, 0.5),
    ]
    assert [(gain["distribution"], gain["installed"]) for gain in results["gains"]] == [("mha-native", False), ("fast", True)]
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert f"│ numpy without fast │ 20 ms │ {FLOPS / 0.02 / 1e9:.0f} │ 50% │" in lines
    assert "fast takes 1.00 of the time that numpy takes without it" in lines
    assert [line for line in lines if line.startswith("mha-native, which is not installed, would take about 0.6 of")]


def test_a_wrong_answer_is_told_and_exits_with_1(measured):
    done = mha("--backend", "torch")
    assert done.exit_code == 1
    assert "attention 8x8x512x64, torch: off" in done.stdout and "mha-native" not in done.stdout


def test_contenders_without_a_baseline_are_timed_and_judged_alike():
    contenders = [Contender(f"off by {n}", sample.off_by, (sample.Sum(1000), n)) for n in (0, 1)]
    found = compare(sample.Sum(1000), None, contenders, QUICK)
    assert list(found.seconds) == ["off by 0"] and len(found.seconds["off by 0"]) == QUICK.rounds
    assert found.wrong == {"off by 1": "the sum is 499501; expected 499500"}
    wide = replace(contenders[1], judged_as=sample.Sum(1000, 1))
    assert compare(sample.Sum(1000), None, [wide], QUICK).wrong == {}, "its own bound"


@pytest.mark.asv
@needs_native
def test_it_runs_with_a_plugin_that_is_installed():
    words = (COMMAND, "bench", "--here", "--json", "--backend", "numpy")
    results = json.loads(printed(words, **ALONE | {"path": [BUILT, *PATHS]}))
    assert [row["backend"] for row in results["rows"]] == ["numpy", "numpy without mha-native"]
    assert all(row["seconds"] > 0 and row["reached"] > 0 and not row["wrong"] for row in results["rows"])
    (gain,) = results["gains"]
    assert gain["installed"] and gain["ratio"] > 0
