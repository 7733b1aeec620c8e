"""Rows of docs/field.md about masks and scores that are functions: what each library computes with them, and refuses."""

import inspect
import warnings

import numpy as np
import pytest
from needs import Library

import mha_core as mha
from field.peers import helper, onnx, reference, torch
from field.probes import equal, numbers
from mha_conformance import oracle
from mha_core.plugin import BLOCK

flex = Library("torch.nn.attention.flex_attention")
COLUMNS = ("mha-core", "torch flex_attention", "FlashAttention-4", "cuDNN", "ONNX FlexAttention")
RUN = ("mha-core", "torch flex_attention", "ONNX FlexAttention")
ROWS = {}
READ = {"blocks that a mask hides are skipped"}
"""Rows that are read in documentation, except for ours: torch skips them in compiled code."""
LENGTH = 192
PAST = np.tri(LENGTH, dtype=bool)
DISTANCE = np.abs(np.arange(LENGTH) - np.arange(LENGTH)[:, None])


def past(batch, head, query, key):
    return query >= key


def nearer(score, batch, head, query, key):
    return score - 0.1 * abs(query - key)


def row(feature):
    """Register the function for the cells of one row: (column, rng) -> the cell's text."""
    return lambda function: ROWS.setdefault(feature, function)


def qkv(rng):
    return [numbers(rng, 1, 2, LENGTH, 8) for _ in range(3)]


def of_torch(arrays, **options):
    with warnings.catch_warnings(action="ignore"):  # that it is not compiled
        return flex.flex_attention(*map(torch.from_numpy, arrays), **options)


def of_onnx(arrays, **nodes):
    """Run FlexAttention with subgraphs of one node each: name=(operator, an array, whether the array comes first)."""
    kind, shape = onnx.TensorProto.FLOAT, ["B", "H", "L", "S"]
    values = {name: helper.make_tensor_value_info(name, kind, shape) for name in (*"QKVY", "x", "y")}
    graphs = {
        name: helper.make_graph([node], name, [values["x"]], [values["y"]], [onnx.numpy_helper.from_array(array, "array")])
        for name, (node, array) in nodes.items()
    }
    node = helper.make_node("FlexAttention", list("QKV"), ["Y"], domain="ai.onnx.preview", **graphs)
    graph = helper.make_graph([node], "attention", [values[name] for name in "QKV"], [values["Y"]])
    versions = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    model = helper.make_model(graph, opset_imports=versions)
    return reference.ReferenceEvaluator(model).run(None, dict(zip("QKV", arrays, strict=True)))[0]


@row("a mask as a function")
def _(column, rng):
    arrays = qkv(rng)
    if column == "mha-core":
        equal(mha.scaled_dot_product_attention(*arrays, mask=mha.mask_function(past)), arrays, allowed=PAST)
        return "yes"
    if column == "torch flex_attention":
        blocks = flex.create_block_mask(past, None, None, LENGTH, LENGTH, device="cpu")
        equal(of_torch(arrays, block_mask=blocks), arrays, allowed=PAST)
        return "yes"
    hidden = np.where(PAST, 0, -np.inf).astype(np.float32)
    equal(of_onnx(arrays, score_mod=(helper.make_node("Add", ["x", "array"], ["y"]), hidden)), arrays, allowed=PAST)
    return "in the scores"


@row("a score as a function")
def _(column, rng):
    arrays, bias = qkv(rng), (-0.1 * DISTANCE).astype(np.float32)
    out = {
        "mha-core": lambda: mha.scaled_dot_product_attention(*arrays, bias=mha.score_function(nearer)),
        "torch flex_attention": lambda: of_torch(arrays, score_mod=nearer),
        "ONNX FlexAttention": lambda: of_onnx(arrays, score_mod=(helper.make_node("Add", ["x", "array"], ["y"]), bias)),
    }[column]()
    equal(out, arrays, bias=bias)
    return "yes"


@row("the weights as a function")
def _(column, rng):
    if column != "ONNX FlexAttention":
        return ""  # no argument for it
    arrays = qkv(rng)
    halved = of_onnx(arrays, prob_mod=(helper.make_node("Mul", ["x", "array"], ["y"]), np.asarray(0.5, dtype=np.float32)))
    np.testing.assert_allclose(halved, oracle.attention(*arrays)[0] / 2, atol=1e-5)
    return "yes"


@row("gradients of query, key and value")
def _(column, rng):
    if column == "ONNX FlexAttention":
        return ""
    x = torch.from_numpy(numbers(rng, 1, 2, 8, 4)).requires_grad_()
    if column == "torch flex_attention":
        with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
            flex.flex_attention(x, x, x, score_mod=nearer)
        return "CUDA"
    mha.scaled_dot_product_attention(x, x, x, bias=mha.score_function(nearer)).square().sum().backward()
    assert x.grad.abs().sum() > 0
    return "yes"


@row("gradients of arrays that a score function reads")
def _(column, rng):
    if column == "ONNX FlexAttention":
        return ""
    arrays, slopes = [numbers(rng, 1, 2, 8, 4)] * 3, torch.ones(2, requires_grad=True)

    def learned(score, batch, head, query, key, slopes):
        return score - slopes[head] * abs(query - key)

    if column == "torch flex_attention":
        out = of_torch(arrays, score_mod=lambda *indices: learned(*indices, slopes))
    else:
        out = mha.scaled_dot_product_attention(*map(torch.from_numpy, arrays), bias=mha.score_function(learned, [slopes]))
    bias = -slopes[:, None, None] * torch.from_numpy(DISTANCE[:8, :8])
    exact = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, arrays), attn_mask=bias)
    actual, expected = (torch.autograd.grad(y.square().sum(), slopes)[0] for y in (out, exact))
    torch.testing.assert_close(actual, expected)
    return "yes"


@row("log-sum-exp of such scores")
def _(column, rng):
    if column == "ONNX FlexAttention":
        return ""  # no output for it
    arrays = qkv(rng)
    lse = {
        "mha-core": lambda: mha.attention_state(*arrays, bias=mha.score_function(nearer)).lse,
        "torch flex_attention": lambda: of_torch(arrays, score_mod=nearer, return_aux=flex.AuxRequest(lse=True))[1].lse,
    }[column]()
    np.testing.assert_allclose(lse, oracle.attention(*arrays, bias=-0.1 * DISTANCE)[1], atol=1e-5)
    return "yes"


@row("blocks that a mask hides are skipped")
def _(column, rng):
    assert column == "mha-core"
    called, length = [], 8 * BLOCK
    arrays = [numbers(rng, 1, 2, length, 8) for _ in range(3)]

    def counted(batch, head, query, key):
        called.append(key.min() // BLOCK > query.max() // BLOCK)  # whether all of its tiles are hidden
        return query >= key

    mask = mha.block_mask(counted, length, length)
    called.clear()
    equal(mha.scaled_dot_product_attention(*arrays, mask=mask), arrays, allowed=np.tri(length, dtype=bool))
    assert called and not any(called)
    return "yes"


@row("functions of NumPy arrays")
def _(column, rng):
    if column == "torch flex_attention":
        with pytest.raises((TypeError, AttributeError)):
            flex.flex_attention(*qkv(rng), score_mod=nearer)
        return ""
    return ROWS["a score as a function"](column, rng)


def onnx_parameters():
    schema = onnx.defs.get_schema("FlexAttention", 1, "ai.onnx.preview")
    return {x.name for x in (*schema.inputs, *schema.outputs)} | set(schema.attributes)


PARAMETERS = {
    "torch flex_attention": (
        lambda: set(inspect.signature(flex.flex_attention).parameters),
        "query key value score_mod block_mask scale enable_gqa return_lse kernel_options return_aux",
    ),
    "ONNX FlexAttention": (onnx_parameters, "Q K V Y score_mod prob_mod scale softmax_precision"),
}
