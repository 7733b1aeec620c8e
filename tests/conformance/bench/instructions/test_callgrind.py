"""Files of callgrind, and where it cannot run."""

import platform
import shutil
import sys
from pathlib import Path

from mha_conformance.bench.instructions import callgrind

HEAD = """version: 1
creator: callgrind-3.19.0
desc: Trigger: Client Request: calls of a case
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
"""
# callgrind writes a name once, and its number afterwards; the line after calls= is inclusive
BODY = """
ob=(1) /usr/lib/python3.11
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
10 1000 1 1
+3 200
cob=(2) /usr/lib/libblas.so
cfi=(2) gemm.c
cfn=(2) sgemm_kernel
calls=2 7
+1 90000 1
* 5

fn=(3) PyObject_Call
12 50

ob=(2)
fl=(2)
fn=(2)
7 45000
7 45000
totals: 91255
summary: 91000 10 20 3 4 5 1 2 3
"""


def written(folder, name="7.out.1", text=HEAD + BODY):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dump_has_its_name_and_the_final_one_has_none(tmp_path):
    path = written(tmp_path)
    written(tmp_path, "7.out.2", "version: 1\ndesc: Trigger: Program termination\n")
    assert list(callgrind.dumps(tmp_path)) == [("calls of a case", path)]


def test_cycles_are_instructions_and_weighted_misses(tmp_path):
    assert callgrind.figures(written(tmp_path)) == (91000, 91000 + 10 * (3 + 4 + 5) + 100 * (1 + 2 + 3))


def test_without_caches_cycles_are_instructions(tmp_path):
    text = "desc: Trigger: Client Request: a\nevents: Ir\nsummary: 12\n"
    assert callgrind.figures(written(tmp_path, text=text)) == (12, 12)


def test_a_function_has_its_own_instructions_and_not_those_of_what_it_calls(tmp_path):
    assert callgrind.functions(written(tmp_path)) == {
        "python3.11: _PyEval_EvalFrameDefault": 1205,
        "python3.11: PyObject_Call": 50,
        "libblas.so: sgemm_kernel": 90000,
    }


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt install valgrind" in callgrind.missing()
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: "flags : sse4_2 avx")
    assert "on a machine with AVX2" in callgrind.missing()
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert "on Linux on x86-64 only" in callgrind.missing() and "arm64" in callgrind.missing()


def test_requests_do_nothing_outside_callgrind():
    if sys.platform == "linux" and platform.machine() == "x86_64":
        requests = callgrind.Requests()
        requests.start()
        requests.dump(requests.label("a name"))
        requests.stop()
