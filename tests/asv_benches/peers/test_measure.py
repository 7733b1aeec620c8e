"""The benchmark against other libraries: what it measures, what it does not time, and what it writes. No peer is needed."""

import json
import sys
from dataclasses import replace
from functools import partial

import needs
import pytest
import sample_contenders as sample
from native import BUILT, needs_native
from native import LEVELS as NATIVE_LEVELS
from processes import finished, run
from project import BENCHES, INSTALLED, PATHS

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.layer import Layer
from mha_conformance.bench.limits import COPY, MATRIX, Limit
from mha_conformance.bench.rounds import Effort
from mha_conformance.bench.worker import WorkerFailed
from peers import attention, layer, training
from peers.cases import CASES, KNOWN, Case, MissingPeer, Peer, check_installed
from peers.measure import measured
from peers.training import LayerStep, OptimiserStep

pytestmark = pytest.mark.asv
EFFORT = Effort(rounds=4, sample=0.001, processes=1)
SUM = sample.Sum(1000)
PEER = Peer("builtin sum", sample.builtin)


def case_of(ours, problem=SUM, **goals):
    return Case("sum", problem, PEER, goals, ours=ours)


def test_each_case_has_a_peer_and_goals_of_its_own_on_known_contenders():
    assert len({(case.name, case.peer.name) for case in CASES}) == len(CASES)
    assert all(case.goals and set(case.goals) <= set(KNOWN) for case in CASES)
    (layer,) = (case for case in CASES if case.name == "encoder layer 8x512x512")
    assert layer.goals == {"numpy": 0.85, "torch": 0.75, "numpy+native": 0.40, "torch+native": None}


# rounds and processes


def test_each_part_of_the_rounds_has_fresh_processes(tmp_path):
    """The speed of a process depends on chance when it starts, and then stays the same."""
    path, peers = tmp_path / "processes", tmp_path / "peer's processes"
    case = replace(case_of(sample.noted), peer=Peer("noted", partial(sample.noted, path=peers)))
    (row,) = measured(case, [str(path)], replace(EFFORT, rounds=7, processes=3), {})
    assert row.rounds == 7
    assert [len(set(each.read_text(encoding="utf-8").split())) for each in (path, peers)] == [3, 3]


def test_a_slower_contender_has_a_greater_ratio():
    (row,) = measured(case_of(sample.repeated, **{"40": 2.0}), ["40"], EFFORT, {})
    assert row.ratio.low > 4
    assert (row.backend, row.rounds, row.wrong, row.reached) == ("40", 4, "", None)
    assert row.seconds > 4 * row.peer_seconds
    assert row.verdict.startswith("missed by ")


@pytest.mark.parametrize(
    ("kind", "capped", "settings"),
    [
        (MATRIX, True, {}),
        (MATRIX, False, {"dtype": "bfloat16"}),
        (MATRIX, False, {"weights": "int8"}),
        (COPY, False, {}),
    ],
    ids=["float32", "bfloat16", "int8", "copies"],
)
def test_a_goal_asks_for_no_more_than_the_rate_of_products(monkeypatch, kind, capped, settings):
    """That rate is float32's; copies move bytes that reading alone does not."""
    for name, value in {"limit": Limit(kind, 1.0), **settings}.items():
        monkeypatch.setattr(sample.Sum, name, value, raising=False)
    (row,) = measured(case_of(sample.repeated, **{"40": 0.01}), ["40"], EFFORT, {kind: 1.0})
    rate = 10 / row.seconds
    (row,) = measured(case_of(sample.repeated, **{"40": 0.01}), ["40"], EFFORT, {kind: rate})
    goal = 1 / rate / row.peer_seconds if capped else 0.01
    assert row.goal == pytest.approx(goal) and row.verdict.startswith("missed by")


# what is not timed


def test_a_wrong_answer_is_not_timed_and_stops_no_other_backend():
    wrong, right = measured(case_of(sample.off_by), ["1", "0"], EFFORT, {})
    assert wrong.wrong == "the sum is 499501; expected 499500"
    assert (wrong.ratio, wrong.seconds, wrong.rounds, wrong.verdict) == (None, None, 0, "wrong")
    assert right.ratio is not None


@pytest.mark.parametrize(
    ("build", "name", "message"),
    [
        (sample.later_off_by_one, "its first process was here", "the sum is 499501; expected 499500"),
        (sample.failing, "no such backend", "no such backend: ValueError: no such backend"),
        (sample.dying, "7", "the process of 7 died with exit status 7"),
    ],
)
def test_a_contender_is_not_timed_if_any_of_its_processes_is_wrong_raises_or_dies(build, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row,) = measured(case_of(build), [name], replace(EFFORT, processes=2), {})
    assert (row.verdict, row.wrong, row.ratio, row.rounds) == ("wrong", message, None, 0)


def test_a_peer_that_is_wrong_is_an_error():
    case = replace(case_of(sample.off_by), peer=Peer("wrong", partial(sample.off_by, error=1)))
    with pytest.raises(AssertionError, match="the sum is 499501; expected 499500"):
        measured(case, ["0"], EFFORT, {})
    with pytest.raises(WorkerFailed, match=r"^broken: ValueError: out of luck$"):
        measured(replace(case, peer=Peer("broken", partial(sample.failing, words="out of luck"))), ["0"], EFFORT, {})


def test_a_missing_peer_says_what_to_install():
    case = replace(CASES[0], peer=Peer("a peer", attention.sdpa, ("json", "no_such_module")))
    with pytest.raises(MissingPeer, match=r"^a peer needs no_such_module: run make bench-peers, which installs them$"):
        check_installed([case])


# the choice of backends


def test_a_backend_without_goals_is_measured_in_cases_that_apply_to_it():
    takes = [case for case in CASES if case.takes("jax")]
    assert len(takes) == 66
    assert {case.peer.name for case in CASES if case not in takes} == {
        "naive NumPy",
        "import numpy",
        "torch SDPA, bfloat16",
        "sentence-transformers, batch 32",
        "ONNX Runtime, int8",
        "OpenVINO, int8",
        "jax.nn.dot_product_attention",
        "jax.nn.dot_product_attention, with its gradients",
    }
    (half,) = (case for case in CASES if case.name == "text encoder, bfloat16")
    assert not half.takes("numpy")  # numpy has goals, but none for this case
    assert measured(half, ["numpy"], EFFORT, {}) == []


# the peers


WORKS = {
    "attention": (Attention(2, 3, 20, 8), Attention(2, 3, 20, 8, causal=True), attention.sdpa),
    "attention, causal": (Attention(1, 2, 33, 8, causal=True), Attention(1, 2, 33, 8), attention.sdpa),
    "attention, window": (Attention(1, 2, 64, 8, window=5), Attention(1, 2, 64, 8), attention.sdpa),
    "decode": (Attention(1, 2, 1, 8, keys=50), None, attention.sdpa),
    "attention step": (AttentionStep(2, 3, 33, 8, causal=True), AttentionStep(2, 3, 33, 8), attention.sdpa_step),
    "attention in JAX": (Attention(2, 3, 20, 8, causal=True), Attention(2, 3, 20, 8), attention.jax_nn),
    "attention step in JAX": (AttentionStep(2, 3, 33, 8), AttentionStep(2, 3, 33, 8, causal=True), attention.jax_nn),
    "gradients alone": (AttentionBackward(2, 3, 33, 8), AttentionBackward(2, 3, 33, 8, causal=True), attention.sdpa_backward),
    "layer": (Layer(2, 5), None, layer.fast_path),
    "layer step, gelu": (LayerStep(2, 5), LayerStep(2, 5, activation="relu"), training.layer_step),
    "layer step, relu": (LayerStep(2, 5, activation="relu"), LayerStep(2, 5), training.layer_step),
    "optimiser": (OptimiserStep(50, 16, 1), None, training.torch_optimiser),
}


@pytest.mark.parametrize(("problem", "other", "peer"), WORKS.values(), ids=WORKS)
def test_work_is_judged_right_on_each_library_and_that_of_another_problem_is_not(problem, other, peer):
    check = problem.judge()
    for work in (problem.ours("numpy"), problem.ours("torch"), peer(problem)):
        with work.mode():
            for _ in range(2):
                check(work.answer())
    if other is not None:
        work = peer(other)
        with work.mode(), pytest.raises(AssertionError, match="times the bound"):
            check(work.answer())


@pytest.mark.parametrize("problem", [Attention(2, 3, 20, 8, causal=True), AttentionStep(2, 3, 33, 8)], ids=["call", "step"])
@needs.installed("mha_jax", "jax")
def test_our_compiled_work_in_jax_is_judged_right(problem):
    problem.judge()(attention.ours_on_jax(problem, "jax").answer())


def test_another_path_of_torch_s_layer_than_the_fast_one_is_refused(monkeypatch):
    monkeypatch.setattr(layer, "FUSED", "aten.other")
    message = r"did not take its fast path, but ran aten\._transformer_encoder_layer_fwd\.default"
    with pytest.raises(RuntimeError, match=message):
        layer.fast_path(Layer(2, 5))


def test_the_command_measures_and_writes(tmp_path):
    """Uses the one case whose peer is installed in every environment."""
    command = partial(run, [sys.executable, "-P", "-m", "peers"], path=[BENCHES, *PATHS], cwd=tmp_path, NO_COLOR="1")
    done = command("--quick", "--case", "import", "--report", tmp_path / "peers", status=0)
    assert "import mha_core" in done.stdout
    (row,) = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))["rows"]
    assert (row["goal"], row["rounds"]) == (1.15, 3)
    assert "ARGS=\"--case 'import' --quick\"" in (tmp_path / "peers.md").read_text(encoding="utf-8")
    done = command("--case", "nothing", status=1)
    assert "no case has 'nothing' in its name" in done.stderr


CONTENDER = """
import sys
from peers import native
from peers.attention import Attention
import mha_core as mha
def runs(problem, backend):
    x = mha.dispatch.backend.load(backend).from_numpy(problem.arrays()[0])
    print(backend, mha.explain("attention", x, x, x).kernel)
native.work(runs, Attention(1, 1, 8, 8), sys.argv[1])
if "+" in sys.argv[1]:
    import mha_native.level
    print(mha_native.level.LEVEL)
"""


@needs_native
@pytest.mark.parametrize(
    ("name", "installed", "told"),
    [
        ("numpy", False, "numpy tiles"),
        ("numpy", True, "numpy tiles"),
        ("numpy+native", False, f"numpy native\n{NATIVE_LEVELS[0]}"),
        ("torch+native", True, f"torch native\n{NATIVE_LEVELS[0]}"),
        ("numpy+native-avx2", False, "numpy native\navx2"),
        ("jax+native", False, f"jax native\n{NATIVE_LEVELS[0]}"),
    ],
)
def test_a_contender_has_the_compiled_plugin_if_its_name_says_so(name, installed, told):
    if "avx2" in name and "avx2" not in NATIVE_LEVELS:
        pytest.skip("this processor has no AVX2")
    path = [*([BUILT] if installed else []), *(folder for folder in PATHS if folder != INSTALLED), BENCHES]
    assert finished(CONTENDER, name, path=path, PYTHONSAFEPATH="1").strip() == told
