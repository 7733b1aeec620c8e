"""The gate's verdict on twenty counted commits: ten are slower, and are found in the right case and backend; no other is."""

import pytest
from asv.results import iter_results_for_machine
from project_clone import ATTEND, only_cases

from mha_conformance.bench.instructions.count import Count
from mha_conformance.history.results import cells
from tracking import counting, gate

pytestmark = [pytest.mark.asv, pytest.mark.rotating]
MAIN, DECODE, DISPATCH = "attention 1x2x256x64", "decode 1x8x1x64, 1024 keys", "dispatch of attention"
PUBLIC, LAST_LINE = ATTEND
OPERATION = ("mha_core/ops/operation.py", "        key = self.key(arguments, options)\n")
RECORD = ("mha_core/ops/attend.py", "        return run(fill(query, key, value, sink=sink))\n")
TILES = ("backends/mha_numpy/attention/kernel.py", "    few_pairs = prepare(p)\n")
FEW = ("backends/mha_numpy/attention/few_pairs.py", "def prepare(p: AttentionProblem)")
SDPA = ("backends/mha_torch/sdpa.py", "        if query.is_contiguous() and key.is_contiguous() and value.is_contiguous():\n")

SLOWER = {
    "numpy: a product of 48 queries more": (*TILES, "    p.query[..., :48, :] @ p.key.mT\n", {("numpy", MAIN)}),
    "numpy: exponentials of the keys": (*TILES, "    np.exp(p.key), np.exp(p.key)\n", {("numpy", MAIN)}),
    "numpy: a copy of the keys": (*TILES, "    p.key.copy()\n", {("numpy", DECODE)}),
    "numpy: a copy of the values": (*TILES, "    p.value.copy()\n", {("numpy", DECODE)}),
    "torch: a product of 48 queries more": (*SDPA, "        query[..., :48, :] @ key.mT\n", {("torch", MAIN)}),
    "torch: a copy of the keys": (*SDPA, "        key = key.clone()\n", {("torch", DECODE)}),
    "torch: a copy of both": (*SDPA, "        key, value = key.clone(), value.clone()\n", {("torch", DECODE)}),
    "one call more in the public function": (PUBLIC, LAST_LINE, "    len(options)\n    (lambda: None)()\n", "dispatch"),
    "one call more in every operation": (*OPERATION, "        (lambda: None)()\n", "dispatch"),
    "one call more before the kernel": (*RECORD, "        (lambda: None)()\n", "dispatch"),
}
"""Path, line, what is planted before it, and the cells that must be slower; "dispatch": that case on both backends.

Other cases of the backend run the planted line too, and may be slower; those of the other backend must not be.
"""

AS_FAST = {
    "a comment in the public function": (PUBLIC, LAST_LINE, "    # as it is\n"),
    "a comment in every operation": (*OPERATION, "        # as it is\n"),
    "a comment before the kernel": (*RECORD, "        # as it is\n"),
    "a comment in NumPy's tiles": (*TILES, "    # as it is\n"),
    "a comment in NumPy's few pairs": (*FEW, "# as it is\n"),
    "a comment in torch's kernel": (*SDPA, "        # as it is\n"),
    "a function that nobody calls": (PUBLIC, "\n@shows_options\ndef scaled", "\ndef _unused() -> None:\n    return None\n\n"),
    "a constant in torch's kernel": ("backends/mha_torch/sdpa.py", "\ndef supports(", "\n_UNUSED = 12345\n\n"),
    "a constant in NumPy's kernel": ("backends/mha_numpy/attention/kernel.py", "\nclass Task(", "\n_UNUSED = 12345\n\n"),
    "an annotation": ("mha_core/ops/attention.py", "\n_attention = ", "\n_unused: int\n"),
}


def test_ten_slower_commits_are_found_and_no_other(clone):
    only_cases(clone, MAIN, DECODE, DISPATCH)
    base = clone.git("rev-parse", "HEAD~1")  # the code of both is the same, and only commits that change code are counted
    expected = {}
    for (slower, planted), (same, harmless) in zip(SLOWER.items(), AS_FAST.items(), strict=True):
        *change, cells_of = planted
        found = {(name, DISPATCH) for name in ("numpy", "torch")} if cells_of == "dispatch" else cells_of
        expected[plant(clone, change, slower)] = (slower, found)
        clone.git("revert", "--no-commit", "HEAD")
        expected[plant(clone, harmless, same)] = (same, set())
    clone.run("history", "--backend", "numpy", "--backend", "torch", status=0)
    counts = {each.commit_hash: table(each) for each in iter_results_for_machine(str(results(clone)), counting.MACHINE)}
    wrong = []
    for commit, (subject, cells_of) in expected.items():
        flagged = {name for name, after in counts[commit].items() if slower_than(counts[base][name], after, name)}
        missed, extra = cells_of - flagged, {cell for cell in flagged if cell[0] not in dict(cells_of)}
        wrong += [f"{subject}: missed {missed}, and also {extra}"] if missed or extra else []
    assert not wrong, "\n".join(wrong)


def plant(clone, change, subject):
    path, line, planted = change
    return clone.change(path, line, planted + line, subject)


def results(clone):
    return clone.root / "asv_benches" / "results"


def table(measured):
    return {cell[1:3]: cell.value for cell in cells(measured, counting.BENCHMARKS["instructions"])}


def slower_than(before, after, name):
    backend, case = name
    if backend == "cupy":  # not here
        return False
    return gate.Cell(backend, case, Count(int(before), 0), Count(int(after), 0)).slower
