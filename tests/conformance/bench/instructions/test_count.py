"""Instructions that callgrind counts: they repeat, they show a change, and no wrong answer has any."""

import pickle
import shutil
import signal
import sys

import pytest
from project import ROOT

from mha_conformance.bench.instructions import callgrind, count
from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.bench.instructions.count import CannotCount, counts, functions
from mha_conformance.bench.instructions.worker import POOL, _drawn_again, answer_file

pytestmark = pytest.mark.asv
TINY, ATTENTION, GELU, LINEAR = "tiny call 1x1x8x8", "dispatch of attention", "dispatch of gelu", "dispatch of linear"
ATTEND = ("ops/attention.py", '    return _attention(query, key, value, options.pop("sink", None), **options).out')
"""The file and the line of the public function in which tests plant a fault."""


@pytest.fixture
def changed(tmp_path):
    """Return a function that changes a copy of mha_core, and returns its folder for Python's path."""
    shutil.copytree(ROOT / "mha_core", tmp_path / "source" / "mha_core", ignore=shutil.ignore_patterns("__pycache__"))

    def change(path, old, new):
        file = tmp_path / "source" / "mha_core" / path
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")
        return tmp_path / "source"

    return change


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


def test_counts_repeat_and_one_more_call_in_dispatch_is_seen_and_named(changed, tmp_path):
    before = changed("ops/attention.py", ATTEND[1], ATTEND[1])
    first, second = (counts("numpy", [TINY, ATTENTION], [before]) for _ in range(2))
    for case, found in first.items():
        assert found.instructions is not None and found.cycles > found.instructions, found.wrong
        assert second[case].instructions == pytest.approx(found.instructions, rel=0.003)
    native = functions("numpy", [ATTENTION], [before], folder(tmp_path, "before"))[ATTENTION]
    assert sum(native.native.values()) == pytest.approx(first[ATTENTION].instructions, rel=0.02)

    changed(ATTEND[0], ATTEND[1], f"    _nothing(query)\n{ATTEND[1]}")
    after = changed(ATTEND[0], "\ndef ", "\ndef _nothing(x):\n    return x\n\n\ndef ")
    slower = counts("numpy", [ATTENTION], [after])[ATTENTION]
    assert slower.instructions > first[ATTENTION].instructions * (1 + COUNTED[ATTENTION].tolerance)
    python = functions("numpy", [ATTENTION], [after], folder(tmp_path, "after"))[ATTENTION].python
    assert python["mha_core.ops.attention._nothing"] > 0 and "mha_core.ops.attention._nothing" not in native.python


def test_what_one_call_of_many_does_once_is_not_counted(changed):
    source = changed(ATTEND[0], ATTEND[1], f"    _CALLS.append(len(_CALLS) == LATE and sum(range(10_000)))\n{ATTEND[1]}")
    found = []
    for late in (2, 5 * COUNTED[TINY].warm + 2):  # the second is counted, in the first group
        changed(ATTEND[0], "\n_attention =", f"\n_CALLS, LATE = [], {late}\n_attention =")
        found.append(counts("numpy", [TINY], [source], caches=False)[TINY].instructions)
    assert found[1] == pytest.approx(found[0], rel=0.003)


def test_types_and_free_blocks_are_others_in_each_group_of_calls():
    class Counted:
        attribute = 1

    def has_version():
        return bool(Counted.__flags__ & 1 << 19)  # CPython's Py_TPFLAGS_VALID_VERSION_TAG

    assert Counted().attribute == 1 and has_version()
    held = _drawn_again(3)
    assert not has_version()
    taken = [sum(map(sys.getsizeof, blocks)) for blocks in held]
    assert len(held) == 30 and all(POOL / 4 < size <= POOL / 3 for size in taken), "of each size a third of a pool"


def test_a_program_in_the_background_which_ignores_ctrl_c_is_counted_as_in_the_foreground():
    """NumPy's kernels shield Ctrl-C only where it does something."""
    case = "attention 4x4x64x32"
    foreground = counts("numpy", [case], caches=False)[case].instructions
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        background = counts("numpy", [case], caches=False)[case].instructions
    finally:
        signal.signal(signal.SIGINT, before)
    assert background == pytest.approx(foreground, rel=0.0005)


def test_a_wrong_answer_a_missing_operation_and_a_process_that_dies_have_no_counts(changed):
    changed(ATTEND[0], ATTEND[1], ATTEND[1] + " * 2")
    source = changed("__init__.py", "__version__ =", "del gelu\nlinear = lambda *_: __import__('os')._exit(3)\n__version__ =")
    found = counts("numpy", [TINY, GELU, LINEAR], [source])
    assert "times the bound" in found[TINY].wrong and not found[TINY].skipped
    assert found[GELU].skipped and "gelu" in found[GELU].wrong
    assert found[LINEAR].wrong == "its process died" and not found[LINEAR].skipped
    assert all(each.instructions is each.cycles is None for each in found.values())


@pytest.mark.parametrize(("threads", "processes"), [(True, 3), (False, 6)])
def test_a_library_with_threads_is_counted_in_one_process_others_by_forks(monkeypatch, tmp_path, threads, processes):
    library = tmp_path / "threads_of_numpy.py"
    library.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
    if threads:
        real = count.libraries
        monkeypatch.setattr(count, "libraries", lambda backend: [*real(backend), library.stem])
    workplace = folder(tmp_path, "workplace")
    figures = counts("numpy", [GELU, LINEAR], [tmp_path], workplace)
    assert all(each.instructions and not each.wrong for each in figures.values())
    assert len({path.name.partition(".")[0] for _, path in callgrind.dumps(workplace)}) == processes


def test_counts_that_another_count_mixed_with_are_an_error(tmp_path):
    (tmp_path / answer_file(TINY)).write_bytes(pickle.dumps((True, None)))
    figures = {f"nothing of {TINY}": [(1, 1)] * 3, f"calls of {TINY}": [(9, 9)] * 8}
    with pytest.raises(CannotCount, match="are not whole: another count wrote to"):
        count._count(TINY, figures, tmp_path)


def test_where_callgrind_cannot_run_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(callgrind, "missing", lambda: "no valgrind here")
    with pytest.raises(CannotCount, match="no valgrind here"):
        counts("numpy", [TINY])


def test_a_program_that_fails_is_an_error_with_its_words(tmp_path):
    with pytest.raises(CannotCount, match="no_such_module"):
        count._run("count", "numpy", [TINY], [], tmp_path, ["sh", "-c", "echo no_such_module >&2; exit 1"])
