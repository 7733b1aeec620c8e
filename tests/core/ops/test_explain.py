"""``explain`` and ``mha explain``: which kernel a call would use and why others are not chosen; nothing is computed."""

import inspect
import json
import re

import numpy as np
import pytest
from command import run
from refusals import refusals
from sample_kernels import OPERATIONS, Plugin, a_backend, a_kernel, received, registered

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_core.ops.explain import OPERATIONS as EXPLAINED_BY_NAME

X = np.ones((2, 3, 4), dtype=np.float32)


def test_it_names_backend_kernel_arrays_dtype_and_device():
    explanation = mha.explain("gelu", X)
    assert explanation == mha.Explanation("gelu", "numpy", "tiles", (), frozenset(), (("x", (2, 3, 4)),), "float32", "cpu")


@pytest.mark.parametrize(("backend", "kernel"), [("numpy", "tiles"), ("array_api_strict", None)])
def test_it_gives_every_rejected_kernel_with_its_reason(installed, backend, kernel):
    installed(
        a_kernel(backend=backend, name="narrow", handles=frozenset({"sink"}), priority=300),
        a_kernel(backend=backend, name="fussy", supports=lambda call: "it is Monday", priority=200),
        a_kernel(backend=backend, name="by name", opt_in=True, priority=150),
    )
    x = load(backend).from_numpy(X)
    explanation = mha.explain("attention", x, x, x, mask=mha.causal(), softcap=2.0)
    assert explanation.kernel == kernel
    assert explanation.features == {"causal", "softcap"}
    assert explanation.rejected == (
        ("narrow", "does not handle causal, softcap"),
        ("fussy", "it is Monday"),
        ("by name", "is chosen only by use_kernel('attention', 'by name')"),
        *([("native", "is not installed: pip install ./backends/mha_native")] if backend == "numpy" else []),
    )
    assert not received


@pytest.mark.parametrize("name", OPERATIONS)
def test_it_names_the_kernel_that_the_call_runs_without_running_it(installed, name):
    call, _, _ = OPERATIONS[name]
    installed(a_kernel(name.partition(" ")[0]))
    assert mha.explain(call).kernel == "sample"
    assert not received
    call()
    assert received


def test_larger_operations_show_what_they_would_call(installed):
    installed(a_kernel("gelu", backend="array_api_strict"))
    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, activation="gelu", seed=0, backend="array_api_strict")
    explanation = mha.explain(layer, load("array_api_strict").from_numpy(X), mask=mha.causal())
    ops = [each.op for each in explanation.walk()]
    assert ops == [
        *("encoder_layer", "multi_head_attention", "linear", "linear", "linear", "attention", "linear", "layer_norm"),
        *("feed_forward", "linear", "gelu", "linear", "layer_norm"),
    ]
    kernels = {each.op: each.kernel for each in explanation.walk()}
    assert kernels["gelu"] == "sample"
    assert kernels["linear"] is None


def test_a_stack_shows_its_layers():
    with mha.use_kernel("encoder_layer", "algebra"):
        explanation = mha.explain(mha.Encoder.init(d_model=4, num_heads=2, d_ff=8, num_layers=3, seed=0), X)
    assert (explanation.op, explanation.backend) == ("Encoder", "numpy")
    assert [each.op for each in explanation.calls] == ["encoder_layer"] * 3
    assert explanation.calls[0] == explanation.calls[2]
    assert "encoder_layer x3: algebra (numpy, float32 on cpu)" in str(explanation)


def test_nothing_is_computed(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("a product was computed")

    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0)
    monkeypatch.setattr(np, "matmul", fails)
    mha.explain(layer, X)


def test_the_text_lists_kernel_arrays_and_rejected_kernels(installed):
    installed(a_kernel("gelu", name="fussy", supports=lambda call: "it is Monday"))
    assert str(mha.explain("gelu", X)).splitlines() == [
        "gelu: tiles (numpy, float32 on cpu)",
        "    arrays    x 2x3x4",
        "    not fussy: it is Monday",
    ]


def test_a_kernel_of_another_distribution_is_named_until_it_is_installed(installed):
    command = "is not installed: pip install ./backends/mha_native"
    assert ("native", command) in mha.explain("attention", X, X, X).rejected
    gradients = mha.explain(mha.scaled_dot_product_attention, X, X, X, gradients=True).calls[-1]
    assert (gradients.op, dict(gradients.rejected)["native"]) == ("attention_vjp", command)
    assert "native" not in dict(mha.explain("gelu", X).rejected)
    with (
        pytest.raises(mha.UnknownKernel, match=f"^kernel 'native' for 'attention' {command}$"),
        mha.use_kernel("attention", "native"),
    ):
        pass
    installed(a_kernel("attention", name="native", supports=lambda call: "it is Monday"))
    assert dict(mha.explain("attention", X, X, X).rejected)["native"] == "it is Monday"


test_arguments_are_checked_as_in_the_call = refusals(
    {
        ValueError: {
            "op is 'gelo'; expected one of ...gelu..., or a callable": lambda: mha.explain("gelo", X),
            "w has shape": lambda: mha.explain("linear", X, np.ones((3, 2), np.float32)),
        },
        TypeError: {
            "key has dtype float64": lambda: mha.explain("attention", X, X.astype(float), X),
            "op is int; expected the name of an operation, or a callable such as a layer": lambda: mha.explain(3, X),
        },
    }
)


def test_a_cache_is_not_changed():
    decoder = mha.Decoder.init(d_model=4, num_heads=2, d_ff=8, num_layers=1, seed=0)
    cache = mha.DecoderCache()
    y = X[0]
    decoder(y, y, cache=cache)
    before = [vars(each).copy() for pair in cache.layers for each in pair]
    for function in (decoder, lambda y, memory, cache: decoder(y, memory, cache=cache)):
        explanation = mha.explain(function, y, y, cache=cache)
        assert {"attention", "linear"} <= {each.op for each in explanation.walk()}
    assert [vars(each) for pair in cache.layers for each in pair] == before


def test_attention_weights_are_an_operation():
    explanation = mha.explain("self_attention", X, *np.ones((3, 4, 4), dtype=np.float32))
    assert [each.op for each in explanation.calls] == ["linear", "linear", "linear", "attention", "attention_weights"]
    assert mha.explain("attention_weights", X, X, mask=mha.causal()).features == {"causal"}
    assert mha.explain("attention_state", X, X, X, mask=mha.causal()).features == {"causal", "lse"}


# on the command line


def mha_explain(*arguments):
    """Run ``mha explain`` in this process, which has imported the libraries already."""
    done = run("explain", *arguments)
    return done.exit_code, done.stdout, " ".join(done.stderr.replace("│", " ").split())


EXPLAINED = {
    "attention query=1x4x9x8 key=1x2x9x8 mask=causal()&window(3,0) softcap=2.5 --backend torch": (
        *(
            "on torch, float32, cpu",
            "tiles",
            "recompute: is for calls that record a gradient",
            "grouped_query, softcap, window",
        ),
    ),
    "encoder_layer x=2x9x16 num_heads=4 activation=gelu mask=key_lengths([3,9]) --dtype float16": (
        *("chunks: computes in float32 or float64, not float16", "multi_head_attention", "tiles", "key_lengths"),
    ),
}


@pytest.mark.parametrize(("arguments", "parts"), EXPLAINED.items())
def test_the_command_explains_calls_and_layers(arguments, parts):
    code, out, _ = mha_explain(*arguments.split())
    assert code == 0 and all(part in out for part in parts)


ATTENTION = ("attention", "query=1x4x9x8", "--backend", "torch")


def test_the_command_says_in_a_line_which_kernels_are_not_installed():
    """The table leaves them out, and JSON has them among the kernels that were not chosen."""
    table, line = mha_explain(*ATTENTION)[1].rstrip().rsplit("\n", 1)
    assert "native" not in table and "recompute: " in table
    assert line == (
        "mha-native, with kernels for torch, is not installed: pip install ./backends/mha_native, in a checkout of mha-core; "
        "`mha bench --here` says what it would bring on this machine"
    )
    assert (
        mha_explain("multi_head_attention", "x=3x4", *(f"w_{w}=4x4" for w in "qkvo"), "num_heads=2")[1].count("mha-native") == 1
    )
    record = json.loads(mha_explain(*ATTENTION, "--json")[1])
    assert record["not chosen"]["native"] == "is not installed: pip install ./backends/mha_native"


def test_the_command_names_no_kernels_that_would_not_compute_the_call():
    assert "mha-native" not in mha_explain("gelu", "x=3x4")[1]
    assert "native" not in mha_explain(*ATTENTION, "--device", "meta")[1]
    with registered(Plugin([a_kernel(backend="torch")]), "mha_native"):
        assert "native" not in mha_explain(*ATTENTION)[1]


def test_the_table_has_a_kernel_with_the_name_of_one_that_is_not_installed(installed):
    installed(a_kernel("attention", backend="torch", name="native", supports=lambda call: "it is Monday"))
    assert "native: it is Monday" in mha_explain(*ATTENTION)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gelo"], "for OP: no operation is named 'gelo'; expected one of"),
        (["attention"], "attention needs query, such as query=8x8x512x64"),
        (["gelu", "x"], "'x' is not of the form NAME=VALUE"),
        (["gelu", "x=two"], "x=two is not a shape; expected numbers joined by x"),
        (["attention", "query=3x4", "mask=open('x')"], "mask=open('x') cannot be read; expected a"),
        (["attention", "query=3x4", "mask=8"], "mask has shape (8,)"),
        (["attention", "query=3x4", "mask='causal()'"], "is not a mask; expected a shape, or causal"),
        (["attention", "query=3x4", "query=3x4"], "query is given twice"),
        (["attention", "query=3x4", "scale=foo"], "scale=foo is not a number; expected for example scale=8"),
        (["attention", "query=3x4", "mask=packed(3)"], "mask=packed(3): "),
        (["multi_head_attention", "x=3x4", "w_q=4x4", "w_k=4x4", "w_v=4x4", "w_o=4x4"], "needs num_heads, such as num_heads=4"),
        (["attention_weights", "query=3x4", "value=3x4"], "attention_weights takes no value"),
        (["gelu", "x=3x4", "--backend", "torch", "--device", "nope"], "for --device: backend 'torch' has no device 'nope': "),
        (["gelu", "x=3x4", "-b", "numpy", "--device", "cuda"], "for --device: backend 'numpy' has no device 'cuda': write --b"),
        (["attention", "query=3x4", "mask=causal("], "cannot be read"),
        (["linear", "x=3x4", "w=5x6"], "w has shape (5, 6); expected (n, m) with n = 4"),
        (["attention", "query=3x4", "mask=causal"], "mask=causal cannot be read; write causal with parentheses: causal()"),
        (["attention", "query=3x4", "mask=mha.window"], "write window with parentheses: window(left, right)"),
        (["attention", "query=3x4", "mask=np.tril(3)"], "mask=np.tril(3) cannot be read; expected a shape"),
        (["attention", "q=3x4"], "attention takes no q; expected query, key, value, mask"),
        (["attention", "qeury=3x4"], "did you mean 'query'?"),
        (["attention", "query=3x4", "is_causal=True"], "attention takes no is_causal; ...; for causal attention write mask="),
        (["encoder_layer", "x=3x4", "nhead=2"], "encoder_layer takes no nhead; expected x, num_heads, d_ff"),
        (["attention", "query=3x4", "dtype=float16"], "attention takes no dtype; ...; write --dtype"),
        (["gelu", "x=3", "--dtype", "int8"], "for --dtype: dtype is 'int8'; expected float32"),
    ],
)
def test_the_command_names_arguments_that_it_cannot_read(arguments, message):
    code, out, err = mha_explain(*arguments)
    assert code == 2
    assert not out
    assert re.search(".*".join(map(re.escape, message.split("..."))), err)


@pytest.mark.parametrize("first", ["8x128x512", "3x6"])
@pytest.mark.parametrize("op", sorted(EXPLAINED_BY_NAME))
def test_what_the_command_says_it_needs_can_be_given(op, first):
    arguments = [] if "query" in inspect.signature(EXPLAINED_BY_NAME[op]).parameters else [f"x={first}"]
    for _ in range(8):
        code, _, err = mha_explain(op, *arguments)
        needed = re.search(r"needs (\w+), such as (\w+=[\w.]+)", err)
        if needed is None:
            break
        assert needed[2].startswith(f"{needed[1]}=")
        arguments.append(needed[2])
    assert code == 0, (arguments, err)


def test_a_mask_may_be_written_as_in_python():
    code, out, _ = mha_explain("attention", "query=1x4x9x8", "mask=mha.causal() & mha.key_lengths([3])")
    assert code == 0
    assert "causal, key_lengths" in out


def test_the_command_says_in_one_line_how_to_install_a_missing_library(installed):
    def namespace():
        raise ModuleNotFoundError("No module named 'sample'", name="sample")

    installed(backends=[a_backend(namespace=namespace, install="pip install 'mha-core[sample]'")])
    code, out, err = mha_explain("attention", "query=1x8x32x64", "--backend", "sample")
    assert (code, out) == (1, "")
    assert err == (
        "error: backend 'sample' cannot be used: ModuleNotFoundError: No module named 'sample'; "
        "install it with: pip install 'mha-core[sample]'"
    )


def test_the_command_suggests_a_backend_for_an_unknown_name():
    code, _, err = mha_explain("gelu", "x=3", "--backend", "torhc")
    assert code == 1
    assert "did you mean 'torch'" in err
