"""How failures are counted: by cause, and by the promises that assertions blame."""

from mha_conformance.report import certificate
from mha_conformance.report.counts import ERROR, Counts, Result
from mha_conformance.report.promises import PROMISES
from mha_conformance.report.summary import lines


def test_failures_that_differ_only_in_numbers_are_one_row():
    counts = Counts()
    causes = ["RuntimeError: There is no Stream(cpu, 1) here.", "AssertionError: x is 1.5e-3; expected nan", "KeyError: 'y'"]
    for at, cause in enumerate([causes[2], causes[0], causes[1], causes[0].replace("1", "16"), causes[0].replace("1", "2")]):
        counts.results[f"test_{at}"] = Result("kernels", [at % 2], "failed", f"again {at}", cause)
    assert [*lines(counts)][2:] == [
        "promise 0, order of work and accuracy: 1 test failed",
        "no promise: another error, or a test of something else: 4 tests failed",
        "",
        "3 tests: RuntimeError: There is no Stream(cpu, 1) here.",
        "    again 1",
        "1 test: KeyError: 'y'",
        "    again 0",
        "1 test: AssertionError: x is 1.5e-3; expected nan",
        "    again 2",
    ]
    for at in range(30):
        counts.results[f"other {at}"] = Result("layers", [], "failed", cause="a" * (at + 1))
    said = [*lines(counts)]
    assert said[-1] == "13 tests: 13 more errors" and len(said) < 60


def test_a_promise_is_blamed_by_an_assertion_alone():
    counts = Counts()
    causes = ["assert 3 == 4", "Failed: DID NOT RAISE <class 'ValueError'>", "TypeError: sum() takes no dtype", ""]
    for at, cause in enumerate(causes):
        counts.results[f"test_{at}"] = Result("promises", [at, 4], "failed" if cause else "passed", cause=cause)
    counts.results["test_4"] = Result("promises", [2], "passed")
    promises = counts.promises()
    assert [(promises[at]["failed"], promises[at][ERROR], promises[at]["passed"]) for at in range(5)] == [
        *((1, 0, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)),
        (2, 1, 1),
    ]
    assert counts.sections()["promises"]["failed"] == 3
    record = {str(number): {"promise": PROMISES[number], **each} for number, each in promises.items() if number < 4}
    (said,) = certificate._promises(record)
    assert said.startswith("Promises failed: 0 (order of work and accuracy), 1 (a fully masked row is zero); ")
    assert said.endswith("Promises held: 3; Promises not judged: 2.")
