"""Which kernels of mha_cupy are chosen by themselves: those that passed on a GPU, by a certificate of this very source."""

import json
from hashlib import sha256

import numpy as np
import pytest

import mha_core as mha
import mha_cupy
from mha_core.conformance.report import certificate
from mha_core.dispatch.contract import Call
from mha_core.dispatch.kernels import decide, imported
from mha_cupy import certified, flash
from mha_cupy.launch import text
from sample_kernels import a_kernel
from test_cupy import python


def kernels():
    return list(mha_cupy.mha_kernels())


def written(**changed):
    """A certificate of a run in which all kernels passed, as conformance writes their part of it."""
    said = [{**certificate._kernel(kernel), "runs": 3} for kernel in kernels()]
    head = {"format": 1, "backend": "cupy", "result": "passed", "selection": "", "quick": False}
    dtypes = ["float32", "float64", "float16", "bfloat16"]
    return {**head, "dtypes": dtypes, "date": "2026-11-21T12:00:00+00:00", "kernels": said, **changed}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Put a certificate, or any text, where the package would have it; gives the reasons of all kernels."""

    def ship(found):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        monkeypatch.setattr(certified, "FILE", path)
        return {kernel.opt_in for kernel in kernels()}

    monkeypatch.setattr(certified, "FILE", tmp_path / "none.json")
    return ship


@pytest.mark.usefixtures("shipped")
def test_without_a_certificate_every_kernel_is_opt_in():
    assert {kernel.opt_in for kernel in kernels()} == {"no certificate says that it passed on a GPU"}
    assert not certified.certified("gelu", "fused", ["activations.cu"])


def test_a_certificate_of_this_source_turns_kernels_on(shipped):
    assert shipped(written()) == {""}
    assert certified.certified("gelu", "fused", ["activations.cu"])
    assert not any(kernel.opt_in for kernel in kernels())


def test_what_the_package_ships_is_what_its_kernels_are_chosen_by(monkeypatch):
    monkeypatch.setattr("mha_cupy.products.missing", lambda: None)  # cuBLAS, which attention asks for
    monkeypatch.setattr(flash, "capability", lambda: 90)
    for kernel in kernels():
        call = Call(kernel.op, (("x", (2, 4)),), "float16", None)
        decision = decide("cupy", call)
        if not kernel.opt_in:
            assert decision.kernel is not None and not decision.kernel.opt_in
        else:
            reasons = {rejected.name: reason for rejected, reason in decision.rejected}
            assert decision.kernel is None
            assert reasons[kernel.name] == f"is chosen only by use_kernel({kernel.op!r}, {kernel.name!r}): {kernel.opt_in}"
            with mha.use_kernel(kernel.op, kernel.name):
                assert decide("cupy", call).kernel.name == kernel.name


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((0, 4), "float32", "has no empty axes"),
        ((2, 0), "bfloat16", "has no empty axes"),
        ((2, 4), "float8_e4m3fn", "computes in float16, bfloat16, float32, float64, not float8_e4m3fn"),
        ((2**20, 2**11), "float16", "counts to 2147483647 numbers, not to 2147483648"),
        ((2**20, 2**11 - 1), "float16", None),
    ],
)
def test_calls_that_no_kernel_of_rows_takes(shape, dtype, reason):
    for kernel in kernels():
        if kernel.op == "attention":
            continue  # whose limits are others: tests/test_cuda_attention.py
        assert imported(kernel.supports)(Call(kernel.op, (("x", shape),), dtype, None)) == reason


def test_hidden_features_are_counted_too():
    (kernel,) = (kernel for kernel in kernels() if kernel.op == "feed_forward")
    shapes = (("x", (4, 2**18, 8)), ("w_1", (8, 2**11)), ("w_2", (2**11, 8)))
    assert imported(kernel.supports)(Call("feed_forward", shapes, "float16", None)).startswith("counts to")


def test_another_source_is_not_the_one_that_was_judged(shipped, monkeypatch):
    found = written()
    for kernel in found["kernels"]:
        if kernel["op"] in ("rotary", "encoder_layer"):
            kernel["source"] = sha256(b"another").hexdigest()
    reason = "its source is not the one that was judged on 2026-11-21"
    assert shipped(found) == {"", reason}
    assert {kernel.op for kernel in kernels() if kernel.opt_in} == {"rotary", "encoder_layer"}
    monkeypatch.setattr(certified, "text", lambda source: text(source) + "// changed\n")
    assert {kernel.opt_in for kernel in kernels()} == {reason}


def test_what_a_source_includes_is_part_of_it():
    (kernel,) = (kernel for kernel in kernels() if kernel.op == "rotary")
    assert "__global__ void rotary" in kernel.source() and "struct bfloat16" in kernel.source()


@pytest.mark.parametrize(
    "changed", [{"result": "failed"}, {"selection": "-k gelu"}, {"quick": True}, {"backend": "torch"}, {"format": 2}]
)
def test_a_run_that_failed_or_was_a_part_turns_nothing_on(shipped, changed):
    assert shipped(written(**changed)) == {"the certificate of 2026-11-21 does not say that the whole suite passed"}


def test_every_dtype_that_the_kernels_take_must_be_judged(shipped):
    assert shipped(written(dtypes=["float32", "float64"])) == {"the certificate of 2026-11-21 does not judge bfloat16, float16"}


def test_a_kernel_that_never_ran_was_not_judged(shipped):
    found = written()
    found["kernels"] = [kernel for kernel in found["kernels"] if kernel["op"] != "relu"]
    next(kernel for kernel in found["kernels"] if kernel["op"] == "silu")["runs"] = 0
    assert shipped(found) == {"", "the certificate does not say that it ran on a GPU"}
    assert {kernel.op for kernel in kernels() if kernel.opt_in} == {"relu", "silu"}


@pytest.mark.parametrize(
    ("found", "reason"),
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
def test_a_broken_file_breaks_nothing_and_is_named(shipped, found, reason):
    (said,) = shipped(found)
    assert said.startswith(f"0.json is no certificate: {reason}")


def test_explain_tells_why_a_kernel_waits_to_be_named(installed):
    installed(a_kernel("relu", name="waits", opt_in="no certificate says that it passed on a GPU"))
    (rejected,) = (one for one in mha.explain("relu", np.ones(3)).rejected if one.kernel == "waits")
    assert rejected.reason == "is chosen only by use_kernel('relu', 'waits'): no certificate says that it passed on a GPU"


def test_the_plugin_still_imports_no_library():
    modules = ("cupy", "mha_cupy.rows", "mha_cupy.norms")
    code = f"import sys, mha_core as mha; mha.backends(); print([name for name in {modules} if name in sys.modules])"
    assert python(code) == "[]\n"
