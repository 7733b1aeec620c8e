"""ONNX's conventions on our public API: caches as inputs, lengths of keys, window sizes, scores as outputs, axes.

The node test cases come with the ``onnx`` package; nobody here wrote them.
"""

import importlib
from dataclasses import dataclass

import numpy as np
import onnx

import mha_core as mha

OPERATORS = {
    "Attention": "attention",
    "RotaryEmbedding": "rotaryembedding",
    "LayerNormalization": "layernormalization",
    "RMSNormalization": "rmsnormalization",
    "Gelu": "gelu",
    "Softmax": "softmax",
}


@dataclass
class Case:
    """One node: its inputs by the names of the operator's specification, its attributes, and what comes out."""

    name: str
    op: str
    inputs: dict
    attributes: dict
    outputs: list  # None where the node leaves an output out


def cases():
    """Every case of one node, its data set aligned with the node's inputs, of which absent ones have no data."""
    from onnx.backend.test.case import node

    for module in OPERATORS.values():
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    found = {}
    for case in node._NodeTestCases:
        graph = case.model.graph.node
        if len(graph) != 1 or graph[0].op_type not in OPERATORS:
            continue
        (single,) = graph
        inputs, outputs = (list(data) for data in case.data_sets[0])
        schema = onnx.defs.get_schema(single.op_type, case.model.opset_import[0].version)
        names = [argument.name for argument in schema.inputs]
        given = {name: inputs.pop(0) for name, used in zip(names, single.input, strict=False) if used}
        expected = [outputs.pop(0) if used else None for used in single.output]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in single.attribute}
        found[case.name] = Case(case.name.removeprefix("test_"), single.op_type, given, attributes, expected)
    return list(found.values())


def compute(case, make):
    """The outputs of a case by our API; ``make`` turns a NumPy array into the backend's."""
    inputs = {name: make(x) for name, x in case.inputs.items()}
    return globals()[f"_{case.op.lower()}"](make, inputs, **case.attributes)


def _attention(
    make,
    x,
    *,
    is_causal=0,
    scale=None,
    softcap=0.0,
    q_num_heads=None,
    kv_num_heads=None,
    qk_matmul_output_mode=0,
    left_window_size=-1,
    right_window_size=-1,
    softmax_precision=None,  # never below float32 here
):
    query, key, value = x["Q"], x["K"], x["V"]
    flat = query.ndim == 3
    if flat:  # (batch, length, heads * d)
        query, key, value = (
            _heads(y, count) for y, count in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
        )
    past = 0
    if "past_key" in x:
        past = x["past_key"].shape[-2]
        cache = mha.KeyValueCache(x["past_key"], x["past_value"])
        key, value = cache.joined(key, value)
    queries, keys = query.shape[-2], key.shape[-2]
    offset, mask, bias = past, None, None
    lengths = x.get("nonpad_kv_seqlen")
    if lengths is not None:
        mask = mha.key_lengths(lengths)
        offset = lengths - queries
    if is_causal:
        mask = mha.causal() if mask is None else mask & mha.causal()
    if left_window_size >= 0 or right_window_size >= 0:
        sides = (None if size < 0 else size for size in (left_window_size, right_window_size))
        mask = mha.window(*sides) if mask is None else mask & mha.window(*sides)
    given = x.get("attn_mask")
    if given is not None:
        boolean = "bool" in str(given.dtype)
        if given.shape[-1] < keys:  # what a mask leaves open is masked
            given = _padded(make, given, keys, False if boolean else -np.inf)
        if boolean:
            mask = mha.array_mask(given) if mask is None else mask & given
        else:
            bias = given
    options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap or None, "query_offset": offset}
    out, lse = mha.attention_state(query, key, value, **options)
    scores = _scores(query, key, value, lse, options, qk_matmul_output_mode)
    return [_joined(out) if flat else out, key, value, scores]


def _scores(query, key, value, lse, options, mode):
    """0: scaled scores, 1: with the softcap, 2: with mask and bias too, 3: weights. Scores are log(weights) + lse."""
    if mode == 3:
        return mha.attention_weights(query, key, lse, **options)
    left_out = {0: ("softcap", "mask", "bias"), 1: ("mask", "bias"), 2: ()}[mode]
    options = options | dict.fromkeys(left_out)
    lse = mha.attention_state(query, key, value, **options).lse
    weights = mha.attention_weights(query, key, lse, **options)
    with np.errstate(divide="ignore"):
        return np.log(float64(weights)) + float64(lse)[..., None]


def float64(x):
    """A result of any library as NumPy float64, which holds it exactly."""
    return x.double().numpy() if hasattr(x, "double") else np.asarray(x, dtype=np.float64)


def _rotaryembedding(make, x, *, interleaved=0, num_heads=0, rotary_embedding_dim=0):
    y, (cos, sin) = x["X"], (x["cos_cache"], x["sin_cache"])
    flat = y.ndim == 3
    y = _heads(y, num_heads) if flat else y
    if "position_ids" in x:
        cos, sin = (mha.embedding(x["position_ids"], table) for table in (cos, sin))
    y = mha.rotary(y, cos[:, None, :, :], sin[:, None, :, :], interleaved=bool(interleaved))
    return [_joined(y) if flat else y]


def _layernormalization(make, x, *, axis=-1, epsilon=1e-5, stash_type=1):
    y, weight, bias, shape = _last_axis(x["X"], x["Scale"], x.get("B"), axis)
    wide = float64(y)
    kept = tuple(x["X"].shape)[: axis % x["X"].ndim] + (1,) * (x["X"].ndim - axis % x["X"].ndim)
    mean = wide.mean(axis=-1).reshape(kept)
    inverse = 1 / np.sqrt(wide.var(axis=-1) + epsilon).reshape(kept)
    return [mha.layer_norm(y, weight, bias, eps=epsilon).reshape(shape), mean, inverse]


def _rmsnormalization(make, x, *, axis=-1, epsilon=1e-5, stash_type=1):
    y, weight, _, shape = _last_axis(x["X"], x["scale"], None, axis)
    return [mha.rms_norm(y, weight, eps=epsilon).reshape(shape)]


def _gelu(make, x, *, approximate=b"none"):
    return [mha.gelu(x["X"], approximate=approximate.decode())]


def _softmax(make, x, *, axis=-1):
    """The weights of equal queries and keys, with the input as bias."""
    y = x["input"]
    y = y.swapaxes(axis, -1)
    nothing = y[..., :0]
    keys = y.swapaxes(-1, -2)[..., :0]
    return [mha.attention_weights(nothing, keys, bias=y).swapaxes(axis, -1)]


def _heads(y, count):
    return y.reshape(y.shape[0], y.shape[1], count, -1).swapaxes(1, 2)


def _joined(y):
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def _last_axis(x, weight, bias, axis):
    """Several last axes as one."""
    shape = tuple(x.shape)
    x = x.reshape(*shape[: axis % len(shape)], -1)
    return x, weight.reshape(-1), None if bias is None else bias.reshape(-1), shape


def _padded(make, mask, keys, filler):
    wide = np.full((*mask.shape[:-1], keys), filler, dtype=bool if filler is False else np.float32)
    wide[..., : mask.shape[-1]] = np.asarray(mask.tolist())
    padded = make(wide)
    return padded if filler is False or padded.dtype == mask.dtype else padded.to(mask.dtype)
