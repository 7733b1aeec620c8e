"""Reports of the conformance suite: the table, the certificate, and that both are the same with pytest-xdist."""

import importlib
import json
import platform
import re
import sys
import threading
from datetime import UTC, datetime
from hashlib import sha256

import numpy as np
import pytest
from promised import SUITE
from suite import conform, mha_conform, one_line

import mha_core
from mha_conformance.bench.machine import described, processor, versions
from mha_conformance.cases.pieces import piece_problems
from mha_conformance.oracle import tolerance
from mha_conformance.report import certificate
from mha_conformance.report.evidence import ERRORS, RUNS, Evidence, Records, evidence
from mha_conformance.report.promises import PROMISES
from mha_conformance.report.sections import OUTCOMES, SECTIONS, section_named

pytestmark = pytest.mark.full
# kernels of pieces and of attention, pieces, and a promise: every outcome occurs, and no test ends by time
SELECTION = "(test_a_kernel_of_a_piece or test_a_piece_equals or plain or test_7) and not (covering or transforms)"
CHOSEN = ["-k", SELECTION, "--quick", "--dtype", "float32", "--plugin", "reported_plugin"]
COUNTS = [outcome.replace(" ", "_") for outcome in OUTCOMES]


def report(folder, *more, behaviour="right", command=conform, chosen=CHOSEN, status=None):
    """Run the suite with --report; return the process and its certificate, None if it wrote none."""
    (folder / "reports").mkdir(exist_ok=True)
    arguments = [*chosen, *more, "--report", folder / "reports"]
    done = command("numpy", *arguments, status=status, cwd=folder, MHA_REPORTED=behaviour)
    found = folder / "reports" / "numpy.json"
    return done, json.loads(found.read_text()) if found.exists() else None


def table(text, first):
    """Return the table whose heading starts with this word, as lists of cells."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(first))
    rows = [re.split(r"  +", line.strip()) for line in lines[start:]]
    return rows[: next((at for at, row in enumerate(rows) if len(row) == 1), len(rows))]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A run of ``mha conform`` in which nothing fails."""
    done, found = report(tmp_path_factory.mktemp("right"), command=mha_conform, status=0)
    return done, found


def test_the_table_counts_what_pytest_counts(right):
    done, found = right
    heading, *rows, total = table(done.stdout, "section ")
    assert heading == ["section", *OUTCOMES]
    assert {"promises", "kernels", "layers"} <= {row[0] for row in rows} <= set(SECTIONS)
    assert {row[0]: [int(cell) for cell in row[1:]] for row in rows} == {
        name: [counts[key] for key in COUNTS] for name, counts in found["sections"].items()
    }
    passed, failed, refused, not_applicable = (int(cell) for cell in total[1:])
    said = dict(re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1]))
    assert {str(passed): "passed", str(refused + not_applicable): "skipped"}.items() <= said.items()
    assert failed == 0 < refused, "a kernel that refuses with its own reasons is counted"
    assert "tests failed" not in done.stdout and "promise 0" not in done.stdout


def test_a_kernel_that_computed_nothing_has_a_line_of_its_own_with_its_reasons(right):
    done, _ = right
    idle = [line for line in done.stdout.splitlines() if line.startswith("WARNING: kernel ")]
    assert "WARNING: kernel 'never' for attention computed nothing: it refused every call: not today" in idle
    assert not any("with|bar" in line for line in idle)


def test_the_certificate_names_all_that_the_verdict_depends_on(right):
    _, found = right
    assert found["format"] == 1
    assert found["backend"] == "numpy"
    assert found["plugin"] == {"name": "numpy", "distribution": "mha-core", "version": mha_core.__version__}
    assert found["mha_core"] == mha_core.__version__
    assert found["libraries"] == {"numpy": np.__version__}
    assert found["python"] == platform.python_version()
    assert found["platform"] == {
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": described(processor()),
    }
    assert found["commit"] == versions().get("commit"), "None outside a checkout"
    assert (found["device"], found["dtypes"], found["seed"], found["quick"]) == ("cpu", ["float32"], 0, True)
    assert found["selection"] == f"-k '{SELECTION}'"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])).total_seconds() < 600
    assert found["result"] == "passed"
    assert {int(number): one["promise"] for number, one in found["promises"].items()} == PROMISES
    assert found["promises"]["7"]["passed"] >= 1
    assert not any(found["promises"]["8"][key] for key in COUNTS), "a promise that no test tried is listed with zeros"
    errors = found["worst_error_over_bound"]
    assert {"attention", "linear", "relu"} <= set(errors)
    assert all(set(by_dtype) == {"float32"} and 0 <= by_dtype["float32"] <= 1 for by_dtype in errors.values())
    assert errors["linear"]["float32"] > 0.01, "a matrix product is not exact"
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
    calls = len(list(piece_problems("relu", np.random.default_rng(0))))
    assert kernels["with|bar"] == {
        "op": "relu",
        "name": "with|bar",
        "from": "reported_plugin",
        "opt_in": False,
        "runs": calls,
        "refusals": [],
    }
    waiting = {
        "op": "attention",
        "name": "never",
        "from": "reported_plugin",
        "opt_in": True,
        "runs": 0,
        "refusals": ["not today"],
    }
    assert kernels["never"] == {**waiting, "source": sha256(b"text").hexdigest()}, "which source was judged"
    assert platform.node() not in json.dumps(found).split('"')


def test_the_markdown_is_tables_of_the_same_numbers(right):
    done, found = right
    json_file, markdown_file, badge_file = re.findall(r"^report: (.*)$", done.stdout, re.MULTILINE)
    assert json_file.endswith("numpy.json") and markdown_file.endswith("numpy.md") and badge_file.endswith("numpy.svg")
    with open(markdown_file, encoding="utf-8") as file:
        text = file.read()
    assert text.startswith("**numpy: conformance passed, a part of the suite** (")
    assert f"numpy {np.__version__} on device cpu; {described(processor())}, Python {platform.python_version()}" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert [rows[0].split(" | ")[0] for rows in tables] == ["| section", "| worst error / bound", "| kernel of"]
    for rows in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, "every row has as many cells as the heading"
        assert set(rows[1]) <= set("|-: ")
    for name, counts in found["sections"].items():
        assert f"| {name} | {' | '.join(str(counts[key]) for key in COUNTS)} |" in tables[0]
    assert any(row.startswith(r"| relu | with\|bar | reported_plugin | ") for row in tables[2])
    assert any(row.startswith("| attention | never (opt-in) | reported_plugin | 0") for row in tables[2])
    held = [number for number, counts in found["promises"].items() if counts["passed"]]
    assert f"Promises held: {', '.join(held)}; Promises not judged: " in text


@pytest.mark.parametrize(("behaviour", "ratio", "said"), [("wrong", 1e3, "e+0"), ("nan", None, "NaN or inf")])
def test_a_run_that_fails_names_the_promise_and_is_certified_as_failed(tmp_path, behaviour, ratio, said):
    done, found = report(tmp_path, behaviour=behaviour, command=mha_conform, status=1)
    failed = found["promises"]["0"]["failed"]
    assert failed == sum(counts["failed"] for counts in found["sections"].values()) > 1
    lines = done.stdout.splitlines()
    assert f"promise 0, order of work and accuracy: {failed} tests failed" in lines
    details = (tmp_path / "conform-numpy.txt").read_text(encoding="utf-8")
    assert "details: conform-numpy.txt" in lines and "Traceback" not in done.stdout and len(lines) < 100
    assert re.search(r"^.*test_kernels\.py:\d+: in test_", details, re.MULTILINE), "a traceback"
    assert details.count("mha conform numpy ") == failed and details.count("AssertionError") >= failed
    at = next(at for at, line in enumerate(lines) if re.match(r"\d tests?: AssertionError: relu", line))
    assert lines[at + 1].startswith("    mha conform numpy ") and lines[at + 1].strip() in details
    assert "[float32-relu" in lines[at + 1]
    assert found["result"] == "failed"
    worst = found["worst_error_over_bound"]["relu"]["float32"]
    assert worst is None if ratio is None else worst > ratio
    text = (tmp_path / "reports" / "numpy.md").read_text()
    assert "conformance failed" in text and "Promises failed: 0 (order of work and accuracy); Promises held: " in text
    assert any(said in line for line in text.splitlines() if line.startswith("| relu | "))


def test_a_covering_design_is_reported_with_its_pairs_and_its_floor(tmp_path):
    """All pairs are judged however busy the machine is, but those that are refused. The second operation has no kernel."""
    chosen = ["-k", "covering and attention", "--quick", "--dtype", "float32"]
    done, found = report(tmp_path, chosen=chosen, status=0)
    shown = table(done.stdout, "covering design: ")
    for kernel in ("attention by tiles", "multi_head_attention by algebra"):
        one = found["covering"][kernel]["float32"]
        whole = kernel == "multi_head_attention by algebra"
        assert one["problems"] > one["floor"] and bool(one["refused"]) is not whole
        assert one["pairs"] == one["pairs_of"] if whole else 0 < one["pairs"] < one["pairs_of"]
        assert ([kernel, f"{100 * one['pairs'] // one['pairs_of']}%"] in shown) is not whole
        row = f"| {kernel} | float32 | {one['problems']} | {one['floor']} | {one['pairs']} of {one['pairs_of']} | 0 of 0 |"
        assert row in (tmp_path / "reports" / "numpy.md").read_text().splitlines()


def test_xdist_workers_send_their_evidence(tmp_path, right):
    """Counts, worst errors and runs are the same as in one process."""
    done, found = report(tmp_path, "-n", 2, status=0)
    _, alone = right
    for key in set(alone) - {"date"}:
        assert found[key] == alone[key], key
    assert table(done.stdout, "section ") == table(right[0].stdout, "section ")
    assert table(done.stdout, "error / bound") == table(right[0].stdout, "error / bound")


def test_a_test_in_half_precision_belongs_to_that_section(tmp_path):
    """It compares in float32, which represents half precision exactly, and reports its own dtype."""
    chosen = ["-k", "test_a_piece_equals_numpy and linear and not int8 or test_8", "--quick", "--dtype", "float16"]
    _, found = report(tmp_path, chosen=chosen, status=0)
    assert set(found["sections"]) == {"half precision"}
    assert found["promises"]["0"]["passed"] == 1 <= found["promises"]["8"]["passed"]
    assert set(found["worst_error_over_bound"]["linear"]) == {"float16"}


def test_a_test_that_takes_its_worker_down_is_counted(tmp_path):
    chosen = ["-k", "test_a_piece_equals_numpy and relu", *CHOSEN[2:]]
    done, found = report(tmp_path, "-n", 1, behaviour="dies", chosen=chosen, status=1)
    assert found["result"] == "failed"
    assert found["sections"] == {"layers": dict(zip(COUNTS, (0, 1, 0, 0), strict=True))}
    assert "no promise: another error, or a test of something else: 1 test failed" in done.stdout
    assert "-k 'test_a_piece_equals_numpy[float32-relu]'" in done.stdout


# runs that write no certificate


@pytest.mark.parametrize("command", [conform, mha_conform], ids=["pytest", "mha"])
def test_a_run_that_judges_nothing_writes_no_certificate(tmp_path, command):
    done, found = report(tmp_path, command=command, chosen=["-k", "test_plain and never", *CHOSEN[2:]], status=5)
    assert table(done.stdout, "section ")[1] == ["kernels", "0", "0", "1", "0"]
    assert found is None and not list((tmp_path / "reports").iterdir())


def test_a_listing_of_tests_writes_no_certificate(tmp_path):
    done, found = report(tmp_path, "--collect-only")
    assert (done.returncode, found) == (0, None)
    assert "conformance of" not in done.stdout


def test_a_run_that_is_cut_short_writes_no_certificate(tmp_path):
    for workers in (0, 2):
        done, found = report(tmp_path, "-x", "-n", workers, behaviour="wrong")
        assert done.returncode in (1, 2), done.stdout + done.stderr  # 2: pytest-xdist calls it an interruption
        assert found is None and not list((tmp_path / "reports").iterdir())
        assert "no report was written: the run was cut short" in done.stdout


def bad_folders(folder):
    (folder / "file").write_text("")
    (folder / "taken" / "numpy.md").mkdir(parents=True)
    yield "file", "--report file is not a directory"
    yield "file/inside", "--report file/inside cannot be written: Not a directory"
    yield "taken", "--report taken cannot be written: numpy.md in it is a directory"
    if sys.platform == "linux":  # not even root may create a file there
        yield "/proc", "--report /proc cannot be written: "


def test_a_folder_that_cannot_be_written_is_reported_before_any_test_runs(tmp_path):
    for name, message in bad_folders(tmp_path):
        done = mha_conform("numpy", "--report", name, cwd=tmp_path)
        one_line(done, 4, message)
        assert "collected" not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"file", "taken"}
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["numpy.md"]


def test_a_folder_deleted_during_the_run_is_an_error_without_a_verdict(tmp_path):
    done, found = report(tmp_path, behaviour=str(tmp_path / "reports"))
    assert found is None and not (tmp_path / "reports").exists()
    one_line(done, 3, "numpy.json cannot be written: No such file or directory")


def test_the_device_that_is_asked_for_is_in_the_name(tmp_path):
    arguments = ["numpy", "--device", "cpu", "-k", "test_8", "--quick", "--report", tmp_path]
    mha_conform(*arguments, cwd=tmp_path, status=0)
    assert {path.name for path in tmp_path.iterdir()} == {"numpy-cpu.json", "numpy-cpu.md", "numpy-cpu.svg"}


# sections, promises and evidence of tests


@pytest.mark.parametrize("path", SUITE, ids=lambda path: path.stem)
def test_every_module_of_the_suite_belongs_to_a_section_and_names_existing_promises(path):
    module = importlib.import_module(f"mha_conformance.{path.stem}")
    section = getattr(module, "SECTION", section_named(path.name))
    assert section in SECTIONS, f"{path.name} has no section: set SECTION to one of {', '.join(SECTIONS)}"
    assert {number for mark in marks(module) for number in mark.args} <= set(PROMISES)


def marks(module):
    of_module = getattr(module, "pytestmark", [])
    yield from of_module if isinstance(of_module, list) else [of_module.mark]
    for name, function in vars(module).items():
        if name.startswith("test_"):
            yield from (mark for mark in getattr(function, "pytestmark", ()) if mark.name == "promise")


def test_every_promise_that_the_suite_judges_is_named_by_a_test():
    modules = [importlib.import_module(f"mha_conformance.{path.stem}") for path in SUITE]
    named = {number for module in modules for mark in marks(module) for number in mark.args}
    assert set(PROMISES) - named <= {13}


def test_assert_within_records_the_greatest_error_over_its_bound():
    one = np.ones(2)
    evidence.begin("float16")
    tolerance.assert_within("out", np.asarray([1.0, 1.5], dtype=np.float32), one, one)
    tolerance.assert_within("out", np.ones(2, dtype=np.float32), one, one)
    tolerance.assert_within("gelu tanh", np.ones(0, dtype=np.float32), np.ones(0), np.ones(0))
    for wrong in (4.0, np.nan):
        with pytest.raises(AssertionError, match="times the bound"):
            tolerance.assert_within("lse", np.asarray([1.0, wrong], dtype=np.float32), one, one)
        errors = evidence.take()[ERRORS]
        assert errors["attention lse", "float16"] == (3.0 if wrong == 4.0 else np.inf)
    assert evidence.take() == Records()
    evidence.begin(None)
    tolerance.assert_within("weights", np.ones(2, dtype=np.float32), one, one)
    assert evidence.take()[ERRORS] == {("attention weights", "float32"): 0.0}, "without a dtype of the test, the array's counts"


def test_evidence_from_many_threads_is_complete():
    found, together = Evidence(), threading.Barrier(4)

    def work(own):
        together.wait()
        for at in range(500):
            found.error("attention", "float32", float(at * own))
            found.add(RUNS, ("attention", "kernel"), 1)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = found.take()
    assert records[ERRORS] == {("attention", "float32"): 499.0 * 3}
    assert records[RUNS] == {("attention", "kernel"): 2000}


def test_a_backend_without_versions_has_that_of_the_library_it_is_named_after():
    assert certificate._library("numpy") == {"numpy": np.__version__}
    assert certificate._library("no-such-library") == {}
