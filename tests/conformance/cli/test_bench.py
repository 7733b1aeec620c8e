"""``mha bench``: what it measures, what it skips with a note, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sample_contenders as sample
from command import run

from mha_conformance.bench import limits, machine, texts
from mha_conformance.bench.attention import Attention
from mha_conformance.bench.instructions.count import CannotCount, Count
from mha_conformance.bench.limits import COPY, MATRIX
from mha_conformance.bench.rounds import QUICK
from mha_conformance.bench.worker import Worker, WorkerFailed
from mha_conformance.cli import bench, instructions

mha = partial(run, "bench")


@pytest.mark.asv
def test_a_backend_is_compared_with_plain_numpy():
    done = mha("--quick", "--json", "--backend", "numpy", "--case", "tiny")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    plain, row = results["rows"]
    assert (plain["backend"], plain["ratio"], row["backend"]) == ("plain NumPy", None, "numpy")
    assert row["seconds"] > 0 and row["ratio"] > 0 and row["wrong"] == "" and row["of"] == MATRIX
    assert 0 < row["reached"] < 1
    assert results["limits"]["numpy"][MATRIX] > 1e9


def test_the_table_has_a_line_for_each_case_and_a_column_for_each_backend(monkeypatch, capsys):
    results = bench.Results(
        [
            bench.Row("a case", bench.PLAIN, 0.02),
            bench.Row("a case", "numpy", 0.01, 0.5, reached=0.25, of=MATRIX),
            bench.Row("a case", "other", wrong="out[0] is nan; expected 1"),
        ],
        {"numpy": {MATRIX: 2e11, COPY: 3e10}, "other": {MATRIX: 4e11, COPY: 3e10}},
        ["skipped third: no such device"],
    )
    told = shown(results, monkeypatch, capsys)
    assert "10 ms 0.50x (25%)" in told
    assert (
        "limits for numpy, measured just now as the best of NumPy and these: 200 GFLOP/s in matrix products and 30 GB/s" in told
    )
    assert "skipped third: no such device" in told
    assert "a case, other: out[0] is nan; expected 1" in told


def test_a_ratio_is_a_range_if_its_rounds_do_not_support_one_number(monkeypatch, capsys):
    rows = [bench.Row("a case", "numpy", 0.01, 0.5, 0.48, 0.6), bench.Row("a case", "torch", 0.01, 0.5, 0.4, 0.7)]
    told = shown(bench.Results(rows, {}, []), monkeypatch, capsys)
    assert "10 ms 0.50x" in told and "10 ms 0.40-0.70x" in told


@pytest.mark.parametrize(("share", "notes"), [(0.5, 1), (0.05, 0)])
def test_a_busy_machine_is_noted(monkeypatch, share, notes):
    monkeypatch.setattr(bench, "busy", lambda: share)
    monkeypatch.setattr(bench, "_rows", lambda case, *_: [bench.Row(case, "numpy", 1.0)])
    monkeypatch.setattr(bench, "measured", lambda *_: {})
    found = bench.run(["numpy"], ["tiny"], quick=True).notes
    assert sum("other processes used 50% of the cores" in note for note in found) == notes


def test_what_other_processes_use_is_read_from_the_system():
    script = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", script]) for _ in os.sched_getaffinity(0)]
    try:
        assert max(machine.busy() for _ in range(5)) > 0.5
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def shown(results, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    bench.show(results)
    return " ".join(capsys.readouterr().out.split())


def test_a_wrong_answer_is_reported_and_not_timed():
    plain, right, wrong = [
        *bench._rows("sum", sample.Total(1000), ["any"], QUICK, Worker),
        *list(bench._rows("sum", sample.Total(1000, error=1), ["any"], QUICK, Worker))[1:],
    ]
    assert plain.seconds > 0 and right.ratio > 0 and right.reached is None
    assert (wrong.wrong, wrong.seconds, wrong.ratio) == ("the sum is 499501; expected 499500", None, None)


def test_a_limit_that_could_not_be_measured_is_left_out():
    """Also if the other limit of the backend was measured."""
    row, problem = bench.Row("few", "numpy", 0.01, 0.5), Attention(1, 1, 8, 8)
    assert bench._limited(row, problem, {"numpy": {COPY: 3e10}}) is row
    found = bench._limited(row, problem, {"numpy": {MATRIX: 3e10}})
    assert found.reached == problem.limit.amount / 0.01 / 3e10 and found.of == MATRIX
    wrong = bench.Row("few", "numpy", wrong="off")
    assert bench._limited(wrong, problem, {"numpy": {MATRIX: 3e10}}) is wrong


def test_a_wrong_answer_exits_with_1(monkeypatch):
    results = bench.Results([bench.Row("a case", "numpy", wrong="off")], {}, [])
    monkeypatch.setattr(bench, "run", lambda *words, **options: results)
    assert mha("--case", "tiny").exit_code == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--case", "nothing"), 2, "no case has 'nothing' in its name; the cases are: attention 32x12x128x32;"),
        (("--backend", "nump"), 1, "did you mean 'numpy'?"),
        (("--backend", "cupy", "--case", "tiny"), 1, "backend 'cupy' (from mha-core"),
        (("--model", "somewhere"), 2, "give both --model DIR and --texts FILE"),
        (
            ("--model", "somewhere", "--texts", "some", "--case", "tiny"),
            2,
            "--model is given, but no chosen case uses it; choose the text encoder",
        ),
        (("--model", "somewhere", "--texts", "no-such-file", "--case", "text"), 1, "no-such-file"),
        (("--instructions", "--quick"), 2, "it takes only --backend, --case and --json"),
        *((("--here", *words), 2, "it takes only --backend and --json") for words in (["--quick"], ["--case", "tiny"])),
        (("--here", "--instructions"), 2, "it takes only --backend and --json"),
        (("--here", "--model", "somewhere", "--texts", "some"), 2, "it takes only --backend and --json"),
        (("--instructions", "--case", "no such case"), 2, "no case has 'no such case' in its name"),
        (
            ("--model", "somewhere", "--texts", os.devnull, "--case", "text"),
            1,
            "/dev/null is empty; expected one text per line",
        ),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(words, code, message):
    done = mha(*words)
    assert done.exit_code == code
    assert message in " ".join(done.output.replace("│", " ").split())


def test_skipped_backends_are_reported():
    names, notes = bench.usable([])
    assert {"numpy", "torch"} <= set(names)
    assert [note for note in notes if note.startswith("skipped cupy: ")]


def test_known_backends_that_are_not_installed_are_not_reported(monkeypatch):
    rows = [{"name": "numpy", "state": "ready", "reason": ""}, {"name": "jax", "state": "not installed", "reason": ""}]
    monkeypatch.setattr(bench, "report", lambda: rows)
    assert bench.usable([]) == (["numpy"], [])


def test_the_text_encoder_reads_the_given_texts_and_is_skipped_without_them(monkeypatch, tmp_path, minilm):
    file = tmp_path / "texts.txt"
    file.write_text("one text\nanother\n", encoding="utf-8")
    cases, notes = bench._cases(["text encoder"], minilm, file)
    assert list(cases) == ["text encoder"] and notes == []
    assert cases["text encoder"].texts() == ["one text", "another"]
    monkeypatch.setattr(texts, "SENTENCES", tmp_path / "no checkout")
    cases, notes = bench._cases([], None, None)
    assert not [name for name in cases if "text" in name]
    assert notes == ["skipped the text encoder: give --model DIR and --texts FILE"]


def test_without_a_ready_backend_nothing_is_measured(monkeypatch):
    row = {"name": "numpy", "state": "broken", "reason": "no module"}
    monkeypatch.setattr(bench, "report", lambda: [row])
    done = mha("--case", "tiny")
    assert done.exit_code == 1
    assert "no backend is ready; skipped numpy: no module" in done.output


# limits


class Timed:
    """A worker whose calls take a given time; it answers with the type of its device."""

    def __init__(self, name, build, *_):
        self.name, self.kind = name, build.__name__

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self):
        if self.name == "lame":
            raise WorkerFailed("no __dlpack_device__")
        return 2 if self.name == "far" else limits.HOST

    def time(self, calls):
        if (self.name, self.kind) == ("near", "linear"):
            raise WorkerFailed("out of memory")
        seconds = {("plain NumPy", "numpy_product"): 4.0, ("near", "product"): 2.0, ("far", "product"): 0.5}
        return calls * seconds.get((self.name, self.kind), 8.0)


def test_the_limit_is_the_best_on_the_same_kind_of_device():
    rates = limits.measured(["near", "far", "lame"], QUICK, [MATRIX], Timed)
    assert rates == {"near": {MATRIX: 2.0 * limits.SIZE**3 / 2.0}, "far": {MATRIX: 2.0 * limits.SIZE**3 / 0.5}}


@pytest.mark.asv
def test_each_limit_is_measured():
    assert limits.device("numpy").call() == limits.device("torch").call() == limits.HOST
    for build in (limits.product, limits.linear, limits.copy):
        assert build("torch").answer().size


# what is seen meanwhile


def test_what_is_measured_is_told_with_the_rows_so_far(monkeypatch):
    row = bench.Row("", "numpy", 1.0)
    monkeypatch.setattr(bench, "usable", lambda asked: (["numpy"], []))
    monkeypatch.setattr(bench, "_rows", lambda case, *_: [replace(row, case=case)])
    monkeypatch.setattr(bench, "measured", lambda names, effort, kinds, start: {"numpy": dict.fromkeys(kinds, 1e12)})
    told = []
    results = bench.run(
        [], ["tiny", "layer"], watch=lambda doing, done, total, rows: told.append((doing, done, total, len(rows)))
    )
    tiny, layer = bench.chosen(["tiny", "layer"])
    assert told == [(tiny, 0, 3, 0), (layer, 1, 3, 1), ("the limits of this machine", 2, 3, 2)]
    assert [row.case for row in results.rows] == [tiny, layer] and all(row.reached for row in results.rows)


def test_ctrl_c_ends_in_one_line_below_the_rows_so_far(monkeypatch):
    def rows(case, *_):
        if "layer" in case:
            raise KeyboardInterrupt
        return [bench.Row(case, "numpy", 1.0)]

    monkeypatch.setattr(bench, "usable", lambda asked: (["numpy"], []))
    monkeypatch.setattr(bench, "_rows", rows)
    done = mha("--case", "tiny", "--case", "layer")
    assert done.exit_code == 130
    assert "tiny call 1x1x8x8" in done.stdout
    assert done.stderr == "interrupted after 1 of 2 cases\n"
    assert mha("--json", "--case", "tiny", "--case", "layer").stdout == ""


@pytest.mark.asv
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminal")
def test_in_a_terminal_the_case_is_shown_and_ctrl_c_leaves_no_traceback():
    import pty

    near, far = pty.openpty()
    words = [Path(sys.executable).with_name("mha"), "bench", "--quick", "--backend", "numpy"]
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", start, *words]  # a shell ignores Ctrl-C in what it runs in the background
    settings = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(words, stdin=far, stdout=far, stderr=far, start_new_session=True, env=settings) as process:
        os.close(far)
        seen, pressed = b"", False
        with suppress(OSError):  # raised when the process has closed the terminal
            while part := os.read(near, 4096):
                seen += part
                if re.search(rb" 1/\d\d", seen) and not pressed:  # the second case has begun, and its frame is written
                    os.killpg(process.pid, signal.SIGINT)
                    pressed = True
    os.close(near)
    text = seen.decode()
    assert process.returncode == 130, text
    assert pressed and "32x12x128x32" in text and "Traceback" not in text, text
    assert text.rstrip().splitlines()[-1].startswith("interrupted after ")


# instructions


def counted(monkeypatch, counts):
    """Let the command find these counts in place of callgrind's."""
    monkeypatch.setattr(instructions, "counts", lambda backend, cases: dict.fromkeys(cases, counts))


def test_instructions_are_shown_with_what_they_are_and_in_json_with_the_versions(monkeypatch):
    counted(monkeypatch, Count(12_345, 23_456))
    words = ("--instructions", "--backend", "numpy", "--case", "tiny")
    done = mha(*words)
    assert done.exit_code == 0 and "12,345 (23,456)" in done.stdout and "tiny call 1x1x8x8" in done.stdout
    said = " ".join(done.stdout.split())
    assert (
        "counted by callgrind on one thread" in said and "10 for each miss of the first cache, 100 for each of the last" in said
    )
    found = json.loads(mha(*words, "--json").stdout)
    row = {
        "case": "tiny call 1x1x8x8",
        "backend": "numpy",
        "instructions": 12_345,
        "cycles": 23_456,
        "wrong": "",
        "skipped": False,
    }
    assert found["rows"] == [row] and found["notes"] == [] and "numpy" in found["versions"]


def test_a_wrong_answer_is_an_error_and_a_missing_operation_is_not(monkeypatch):
    words = ("--instructions", "--backend", "numpy", "--case", "tiny")
    counted(monkeypatch, Count(wrong="AssertionError: off"))
    done = mha(*words)
    assert done.exit_code == 1 and "tiny call 1x1x8x8, numpy: AssertionError: off" in done.stdout
    monkeypatch.setattr(instructions, "counts", failing)
    done = mha(*words)
    assert done.exit_code == 1 and "tiny call 1x1x8x8, numpy: it ended with status 3" in done.stdout
    counted(monkeypatch, Count(wrong="no gelu", skipped=True))
    done = mha(*words)
    assert done.exit_code == 0 and "no gelu" not in done.stdout


def failing(backend, cases):
    raise CannotCount("it ended with status 3")


def test_what_cannot_be_counted_is_said(monkeypatch):
    monkeypatch.setattr(instructions, "missing", lambda: "valgrind is not installed")
    done = mha("--instructions", "--backend", "numpy", "--case", "tiny")
    assert done.exit_code == 1 and "error: valgrind is not installed" in done.stderr
    monkeypatch.setattr(texts, "SENTENCES", Path("no checkout"))
    names, notes = instructions.cases(["text encoder", "tiny"])
    assert names == ["tiny call 1x1x8x8"]
    assert len(notes) == 1 and notes[0].startswith("skipped text encoder of one layer") and "no checkout" in notes[0]
