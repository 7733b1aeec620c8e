"""The kernels of mha_cupy that are chosen automatically: those whose source is certified to have passed on a GPU."""

import json
from hashlib import sha256

import pytest

import mha_core as mha
import mha_cupy
from mha_conformance.report import certificate
from mha_core.dispatch.contract import Call
from mha_core.dispatch.kernels import decide, imported, opt_in_of
from mha_cupy import certificate as shipped_certificate
from mha_cupy.attention import flash
from mha_cupy.launch import text


def kernels():
    return list(mha_cupy.mha_kernels())


def reasons():
    return {opt_in_of(kernel) for kernel in kernels()}


def written(**changed):
    """A certificate of a run in which all kernels passed, with the fields that conformance writes."""
    judged = [{**certificate._kernel(kernel), "runs": 3} for kernel in kernels()]
    head = {"format": 1, "backend": "cupy", "result": "passed", "selection": "", "quick": False}
    dtypes = ["float32", "float64", "float16", "bfloat16"]
    return {**head, "dtypes": dtypes, "date": "2026-11-21T12:00:00+00:00", "kernels": judged, **changed}


def call_of(op, shape=(2, 4), dtype="float16"):
    """Return a call of an operation with arrays of one shape."""
    if op.startswith("attention"):
        return Call(op, tuple((name, (1, *shape)) for name in ("query", "key", "value")), dtype, None)
    if op == "embedding_vjp":
        return Call(op, (("d_out", shape), ("ids", shape[:-1])), dtype, None, options=(("num_rows", 4),))
    return Call(op, (("x", shape),), dtype, None, options=(("wanted", frozenset({"x"})),) if op.endswith("_vjp") else ())


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Return a function that ships a certificate, or any text, and returns the reasons why kernels are opt-in."""

    def ship(content):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        monkeypatch.setattr(shipped_certificate, "FILE", path)
        return reasons()

    monkeypatch.setattr(shipped_certificate, "FILE", tmp_path / "none.json")
    return ship


@pytest.mark.usefixtures("shipped")
def test_without_a_certificate_every_kernel_is_opt_in():
    assert reasons() == {"no certificate says that it passed on a GPU"}


def test_a_certificate_of_this_source_turns_kernels_on(shipped):
    assert shipped(written()) == {""}


def test_the_shipped_certificate_decides_which_kernels_are_chosen(monkeypatch):
    monkeypatch.setattr("mha_cupy.products.missing", lambda: None)  # attention needs cuBLAS
    monkeypatch.setattr(flash, "capability", lambda: 90)
    for kernel in kernels():
        call = call_of(kernel.op)
        decision = decide("cupy", call)
        reason = opt_in_of(kernel)
        if not reason:
            assert decision.kernel is not None and not opt_in_of(decision.kernel)
        else:
            rejected = {rejected.name: why for rejected, why in decision.rejected}
            assert decision.kernel is None
            assert rejected[kernel.name] == f"is chosen only by use_kernel({kernel.op!r}, {kernel.name!r}): {reason}"
            with mha.use_kernel(kernel.op, kernel.name):
                assert decide("cupy", call).kernel.name == kernel.name


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((0, 4), "float32", "does not support empty axes"),
        ((2, 0), "bfloat16", "does not support empty axes"),
        ((2, 4), "float8_e4m3fn", "supports float16, bfloat16, float32, float64, not float8_e4m3fn"),
        ((2**20, 2**11), "float16", "supports up to 2147483647 elements, not 2147483648"),
        ((2**20, 2**11 - 1), "float16", None),
    ],
)
def test_refusal_reasons_of_row_wise_kernels(monkeypatch, shape, dtype, reason):
    monkeypatch.setattr("mha_cupy.products.missing", lambda: None)
    for kernel in kernels():
        if kernel.op.startswith("attention"):
            continue  # cuda/test_attention.py tests their limits
        of_any_size = kernel.op == "adamw" and "elements" in (reason or "")  # it counts in 64 bits
        assert imported(kernel.supports)(call_of(kernel.op, shape, dtype)) == (None if of_any_size else reason)


def test_hidden_features_are_counted_too():
    (kernel,) = (kernel for kernel in kernels() if kernel.op == "feed_forward")
    shapes = (("x", (4, 2**18, 8)), ("w_1", (8, 2**11)), ("w_2", (2**11, 8)))
    assert imported(kernel.supports)(Call("feed_forward", shapes, "float16", None)).startswith("supports up to")


def test_a_changed_source_is_not_certified(shipped, monkeypatch):
    content = written()
    for kernel in content["kernels"]:
        if kernel["op"] in ("rotary", "encoder_layer"):
            kernel["source"] = sha256(b"another").hexdigest()
    reason = "its source has changed since it was certified on 2026-11-21"
    assert shipped(content) == {"", reason}
    assert {kernel.op for kernel in kernels() if opt_in_of(kernel)} == {"rotary", "encoder_layer"}
    shipped_certificate.reason_against.cache_clear()
    monkeypatch.setattr(shipped_certificate, "text", lambda source: text(source) + "// changed\n")
    assert reasons() == {reason}


def test_included_files_are_part_of_the_source():
    (kernel,) = (kernel for kernel in kernels() if kernel.op == "rotary")
    assert "__global__ void rotary" in kernel.source() and "struct bfloat16" in kernel.source()


@pytest.mark.parametrize(
    "changed", [{"result": "failed"}, {"selection": "-k gelu"}, {"quick": True}, {"backend": "torch"}, {"format": 2}]
)
def test_a_failed_or_partial_run_certifies_nothing(shipped, changed):
    assert shipped(written(**changed)) == {"the certificate of 2026-11-21 does not say that the whole suite passed"}


def test_a_certificate_must_cover_every_dtype(shipped):
    assert shipped(written(dtypes=["float32", "float64"])) == {"the certificate of 2026-11-21 does not cover bfloat16, float16"}


def test_a_kernel_that_never_ran_is_not_certified(shipped):
    content = written()
    content["kernels"] = [kernel for kernel in content["kernels"] if kernel["op"] != "relu"]
    next(kernel for kernel in content["kernels"] if kernel["op"] == "silu")["runs"] = 0
    assert shipped(content) == {"", "the certificate does not say that it ran on a GPU"}
    assert {kernel.op for kernel in kernels() if opt_in_of(kernel)} == {"relu", "silu"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSONDecodeError: Expecting property name"),
        ("", "JSONDecodeError: Expecting value"),
        ("[]", "TypeError: list indices"),
        ("{}", "KeyError: 'kernels'"),
        ('{"kernels": 3}', "TypeError: 'int' object is not iterable"),
        (json.dumps({"kernels": [], "date": 3}), "TypeError: 'int' object is not subscriptable"),
        (json.dumps({"kernels": [], "date": "2026-11-21", "dtypes": []}), "KeyError: 'format'"),
    ],
)
def test_a_broken_certificate_is_named_and_breaks_nothing(shipped, content, reason):
    (message,) = shipped(content)
    assert message.startswith(f"0.json is not a certificate: {reason}")
