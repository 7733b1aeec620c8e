"""The benchmark against other libraries: what it measures, what it does not time, and what it writes. No peer is needed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import sample_contenders as sample
from native import BUILT, needs_native
from native import LEVELS as NATIVE_LEVELS
from project import PATHS, ROOT

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.layer import Layer
from mha_conformance.bench.rounds import Effort
from mha_conformance.bench.worker import WorkerFailed
from peers import attention, layer, training
from peers.cases import BACKENDS, CASES, Case, MissingPeer, Peer, check_installed, chosen
from peers.measure import measured
from peers.native import LEVELS
from peers.training import LayerStep, OptimiserStep

pytestmark = pytest.mark.asv
EFFORT = Effort(rounds=4, sample=0.001, processes=1)
SUM = sample.Sum(1000)
PEER = Peer("builtin sum", sample.builtin)

# case, peer, goal on NumPy, goal on torch, of the compiled plugin, of it held down to AVX2; -: measured without a goal
GOALS = """
attention 8x8x512x64           | torch SDPA                            | 1.00 | 1.02 | 0.37 | 0.72
attention 8x8x512x64, causal   | torch SDPA                            | 0.90 | 1.02 | 0.21 | 0.38
attention 1x8x2048x64          | torch SDPA                            | 1.08 | 1.02 | 0.40 | 0.78
attention 1x8x2048x64, causal  | torch SDPA                            | 1.08 | 1.02 | 0.33 | 0.64
attention 1x8x8192x64, causal  | torch SDPA                            | 1.08 | 1.02 | 0.38 | 0.74
attention 32x12x128x32         | torch SDPA                            | 1.10 | 1.05 | 0.34 | 0.60
attention 32x12x128x32, causal | torch SDPA                            | -    | -    | 0.23 | 0.35
grouped queries 1x32x1024x64 of 8 heads, causal | torch SDPA           | -    | -    | 0.29 | 0.54
wide scores 8x8x512x64         | torch SDPA                            | 1.5  | 1.05 |      |
wide scores 1x8x2048x64        | torch SDPA                            | 1.5  | 1.05 |      |
wide scores 32x12x128x32       | torch SDPA                            | 1.5  | 1.05 |      |
window of 256, 1x8x8192x64     | torch SDPA, mask as an array          | 0.15 | 0.3  |      |
decode 1x8x1x64, 8192 keys     | torch SDPA                            | 1.1  | 1.05 | 0.49 | 0.53
decode 1x32x1x64, 8192 keys of 8 heads | torch SDPA                    | -    | -    | 0.31 | 0.40
bfloat16 8x8x512x64            | torch SDPA, bfloat16                  |      |      | torch 0.22 |
bfloat16 8x8x512x64, causal    | torch SDPA, bfloat16                  |      |      | torch 0.12 |
bfloat16 1x8x2048x64           | torch SDPA, bfloat16                  |      |      | torch 0.22 |
bfloat16 1x8x2048x64, causal   | torch SDPA, bfloat16                  |      |      | torch 0.18 |
bfloat16 32x12x128x32          | torch SDPA, bfloat16                  |      |      | torch 0.15 |
encoder layer 8x128x512        | nn.TransformerEncoderLayer, fast path | 1.15 | 1.00 |      |
encoder layer 8x512x512        | nn.TransformerEncoderLayer, fast path | 0.85 | 0.75 | numpy 0.40, torch - |
attention and gradients 8x8x512x64 | torch SDPA, with its gradients    | 0.62 | 1.0  |      |
attention and gradients 8x8x512x64, causal | torch SDPA, with its gradients | 0.56 | 1.0 |  |
attention and gradients 1x8x2048x64 | torch SDPA, with its gradients   | 0.65 | 1.0  |      |
attention and gradients 1x8x2048x64, causal | torch SDPA, with its gradients | 0.62 | 1.0 | |
attention and gradients 32x12x128x32 | torch SDPA, with its gradients  | 0.72 | 1.0  |      |
gradients alone 8x8x512x64     | torch SDPA, gradients alone           |      |      | 0.41 |
gradients alone 8x8x512x64, causal | torch SDPA, gradients alone       |      |      | 0.26 |
gradients alone 1x8x2048x64    | torch SDPA, gradients alone           |      |      | 0.44 |
gradients alone 1x8x2048x64, causal | torch SDPA, gradients alone      |      |      | 0.36 |
encoder layer, training 8x128x512, gelu | nn.TransformerEncoderLayer, training | 0.57 | 0.55 | |
encoder layer, training 8x128x512, relu | nn.TransformerEncoderLayer, training | 0.57 | 0.55 | |
text encoder, training, 32 sentences | sentence-transformers, training | 0.45 | 0.45 |      |
AdamW, 22.6 million weights    | torch.optim.AdamW                     | 1.0  | -    |      |
text encoder                   | sentence-transformers, batch 32       | 0.35 | 0.28 |      |
text encoder, bfloat16         | sentence-transformers, batch 32       |      | 0.14 |      |
text encoder, 5120 texts       | sentence-transformers, batch 32       | -    | -    |      |
ModernBERT-base with random weights, 64 sentences | sentence-transformers, batch 32 | 0.60 | 0.45 | |
cross-encoder, 256 pairs       | sentence-transformers, batch 32       | 0.40 | 0.30 |      |
tiny call 1x1x8x8              | naive NumPy                           | 1.0  |      | numpy 0.30 |
tiny call 1x1x8x8              | torch SDPA                            |      | 1.6  | torch 0.90 |
import mha_core                | import numpy                          | 1.15 |      |      |
"""


def goal_of(text):
    return None if text == "-" else float(text)


def goals_of(numpy, torch, *native):
    goals = {name: goal_of(goal) for name, goal in (("numpy", numpy), ("torch", torch)) if goal}
    for level, text in zip(LEVELS, native, strict=True):
        on = [each.split() if " " in each else each for each in text.split(", ") if each]
        given = dict(on) if on and isinstance(on[0], list) else dict.fromkeys(BACKENDS, on[0]) if on else {}
        goals |= {f"{backend}+{level}": goal_of(goal) for backend, goal in given.items()}
    return goals


def case_of(ours, problem=SUM, **goals):
    return Case("sum", problem, ours, PEER, goals)


def test_the_cases_are_the_goals():
    expected = [[word.strip() for word in line.split("|")] for line in GOALS.strip().splitlines()]
    assert [[case.name, case.peer.name] for case in CASES] == [line[:2] for line in expected]
    for case, (_, _, *goals) in zip(CASES, expected, strict=True):
        assert case.goals == goals_of(*goals), case.name


# rounds and processes


def test_each_part_of_the_rounds_has_fresh_processes(tmp_path):
    """How fast a process is depends on chance when it starts, and then stays the same."""
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


# what is not timed


def test_a_wrong_answer_is_not_timed_and_stops_no_other_backend():
    wrong, right = measured(case_of(sample.off_by), ["1", "0"], EFFORT, {})
    assert wrong.wrong == "the sum is 499501; expected 499500"
    assert (wrong.ratio, wrong.seconds, wrong.rounds, wrong.verdict) == (None, None, 0, "wrong")
    assert right.ratio is not None


def test_the_answer_of_each_process_is_checked(tmp_path):
    path = str(tmp_path / "the first was here")
    (row,) = measured(case_of(sample.later_off_by_one), [path], replace(EFFORT, processes=2), {})
    assert (row.wrong, row.ratio, row.rounds) == ("the sum is 499501; expected 499500", None, 0)


def test_a_contender_that_raises_is_not_timed():
    (row,) = measured(case_of(sample.failing), ["no such backend"], EFFORT, {})
    assert (row.verdict, row.wrong) == ("wrong", "no such backend: ValueError: no such backend")


def test_a_process_that_dies_is_reported():
    (row,) = measured(case_of(sample.dying), ["7"], EFFORT, {})
    assert row.wrong == "the process of 7 died with exit status 7"


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


# the choice of cases and backends


def test_cases_are_chosen_by_a_part_of_their_names():
    assert {case.name for case in chosen(["CAUSAL", "decode"])} == {case.name for case in CASES if "causal" in case.name} | {
        "decode 1x8x1x64, 8192 keys",
        "decode 1x32x1x64, 8192 keys of 8 heads",
    }
    assert chosen([]) == list(CASES)
    with pytest.raises(ValueError, match=r"no case has 'nothing' in its name; the cases are\n  attention 8x8x512x64\n"):
        chosen(["tiny", "nothing"])


def test_a_backend_without_goals_is_measured_in_cases_that_apply_to_it():
    takes = [case for case in CASES if case.takes("jax")]
    assert len(takes) == 34
    assert {case.peer.name for case in CASES if case not in takes} == {
        "naive NumPy",
        "import numpy",
        "torch SDPA, bfloat16",
        "sentence-transformers, batch 32",
    }
    (half,) = (case for case in CASES if case.name == "text encoder, bfloat16")
    assert not half.takes("numpy")  # numpy has goals, but none for this case
    assert measured(half, ["numpy"], EFFORT, {}) == []


# the peers


@pytest.mark.parametrize(
    "problem",
    [
        Attention(2, 3, 20, 8),
        Attention(1, 2, 33, 8, causal=True),
        Attention(1, 2, 64, 8, window=5),
        Attention(1, 2, 1, 8, keys=50),
    ],
    ids=str,
)
def test_torch_s_attention_is_judged_right(problem):
    work = attention.sdpa(problem)
    problem.judge()(work.read(work.call()))


def test_torch_s_fast_path_is_judged_right_and_another_path_is_refused(monkeypatch):
    problem = Layer(2, 5)
    work = layer.fast_path(problem)
    with work.mode():
        problem.judge()(work.read(work.call()))
    monkeypatch.setattr(layer, "FUSED", "aten.other")
    with pytest.raises(
        RuntimeError, match=r"did not take its fast path, but ran aten\._transformer_encoder_layer_fwd\.default"
    ):
        layer.fast_path(problem)


STEPS = {
    "attention": (AttentionStep(2, 3, 33, 8, causal=True), AttentionStep(2, 3, 33, 8), training.sdpa_step),
    "gradients alone": (AttentionBackward(2, 3, 33, 8), AttentionBackward(2, 3, 33, 8, causal=True), training.sdpa_backward),
    "layer, gelu": (LayerStep(2, 5), LayerStep(2, 5, activation="relu"), training.layer_step),
    "layer, relu": (LayerStep(2, 5, activation="relu"), LayerStep(2, 5), training.layer_step),
    "optimiser": (OptimiserStep(50, 16, 1), None, training.torch_optimiser),
}


@pytest.mark.parametrize(("problem", "other", "theirs"), STEPS.values(), ids=STEPS)
def test_training_is_judged_right_on_each_library_and_another_step_is_not(problem, other, theirs):
    check = problem.judge()
    for work in (problem.ours("numpy"), problem.ours("torch"), theirs(problem)):
        for _ in range(2):
            check(work.read(work.call()))
    if other is not None:
        work = theirs(other)
        with pytest.raises(AssertionError, match="times the bound"):
            check(work.read(work.call()))


def test_the_command_measures_and_writes(tmp_path):
    """Uses the one case whose peer is installed in every environment."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "asv_benches"), "NO_COLOR": "1"}

    def command(*options):
        whole = [sys.executable, "-P", "-m", "peers", *options]
        return subprocess.run(whole, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    done = command("--quick", "--case", "import", "--report", str(tmp_path / "peers"))
    assert done.returncode == 0, done.stderr
    assert "import mha_core" in done.stdout
    (row,) = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))["rows"]
    assert (row["goal"], row["rounds"]) == (1.15, 3)
    assert "ARGS=\"--case 'import' --quick\"" in (tmp_path / "peers.md").read_text(encoding="utf-8")
    done = command("--case", "nothing")
    assert done.returncode == 1
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
    ],
)
def test_a_contender_has_the_compiled_plugin_if_its_name_says_so(name, installed, told):
    if "avx2" in name and "avx2" not in NATIVE_LEVELS:
        pytest.skip("this processor has no AVX2")
    path = [*([BUILT] if installed else []), *PATHS, ROOT / "asv_benches"]
    done = subprocess.run(
        [sys.executable, "-c", CONTENDER, name],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == told
