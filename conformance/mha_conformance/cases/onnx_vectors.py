"""ONNX's own node test cases, from the ``onnx`` package, computed by the public API.

They follow ONNX's conventions: caches as inputs, key lengths, window sizes, scores as outputs, norms over several axes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import and_
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.shared import device_of, split_axis

from ..backend import BackendUnderTest
from .onnx_flex import flex_attention

HALF_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass
class Case:
    """A test case of one node."""

    name: str
    op: str
    inputs: Mapping[str, Any]
    """Arrays by the names in the operator's specification."""
    attributes: Mapping[str, Any]
    outputs: list[Any]
    """Expected arrays, in the operator's order; None for an output that the node does not use."""

    @property
    def dtypes(self) -> set[str]:
        """Names of the dtypes of its floating inputs."""
        return {str(x.dtype) for x in self.inputs.values() if "float" in str(x.dtype)}

    def tolerance(self) -> float:
        """Return 2 eps for half precision, where ONNX's expected outputs are rounded themselves; 0 for float32."""
        return 2 * max((HALF_EPS.get(dtype, 0.0) for dtype in self.dtypes), default=0.0)


@cache
def cases() -> list[Case]:
    """Return every case that consists of one node. Inputs that a node leaves out have no data in its data set.

    Raises ImportError without onnx.
    """
    import onnx
    from onnx.backend.test.case import node

    for operator in OPERATORS:
        importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    by_name = {}
    for case in node._NodeTestCases:
        graph = case.model.graph.node
        if len(graph) != 1 or graph[0].op_type not in OPERATORS:
            continue
        (single,) = graph
        inputs, outputs = (list(data) for data in case.data_sets[0])
        versions = {opset.domain: opset.version for opset in case.model.opset_import}
        schema = onnx.defs.get_schema(single.op_type, versions[single.domain], single.domain)
        names = [argument.name for argument in schema.inputs]
        given = {name: inputs.pop(0) for name, used in zip(names, single.input, strict=False) if used}
        expected = [outputs.pop(0) if used else None for used in single.output]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in single.attribute}
        by_name[case.name] = Case(case.name.removeprefix("test_"), single.op_type, given, attributes, expected)
    return list(by_name.values())


def compute(backend: BackendUnderTest, case: Case) -> list[Any]:
    """Compute the outputs of a case by the public API on the backend; scores and statistics of norms come as NumPy arrays."""
    inputs = {name: given(backend, x) for name, x in case.inputs.items()}
    return OPERATORS[case.op](backend, inputs, **case.attributes)


def given(backend: BackendUnderTest, x: np.ndarray) -> Any:
    """Return an input on the backend, in its own dtype."""
    name = str(x.dtype)  # bfloat16 is not one of NumPy's own dtypes
    return backend.array(x.astype(np.float64), name) if "float" in name else backend.array(x)


def _attention(
    backend: BackendUnderTest,
    x: dict[str, Any],
    *,
    is_causal: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    softmax_precision: int | None = None,  # never below float32 here
) -> list[Any]:
    query, key, value = x["Q"], x["K"], x["V"]
    flat = query.ndim == 3
    if flat:  # (batch, length, heads * d)
        query = _heads(backend, query, q_num_heads)
        key, value = (_heads(backend, y, kv_num_heads) for y in (key, value))
    past = 0
    if "past_key" in x:
        past = x["past_key"].shape[-2]
        key, value = mha.KeyValueCache(x["past_key"], x["past_value"]).joined(key, value)
    queries, keys = query.shape[-2], key.shape[-2]
    offset: Any = past
    masks: list[Any] = []
    lengths = x.get("nonpad_kv_seqlen")
    if lengths is not None:
        masks.append(mha.key_lengths(lengths))
        offset = lengths - queries
    if is_causal:
        masks.append(mha.causal())
    if left_window_size >= 0 or right_window_size >= 0:
        masks.append(mha.window(*(None if size < 0 else size for size in (left_window_size, right_window_size))))
    bias = x.get("attn_mask")
    if bias is not None:
        boolean = not backend.loaded.is_floating(bias.dtype)
        bias = _padded(backend, bias, keys, boolean)
        if boolean:
            masks.append(mha.array_mask(bias))
            bias = None
    mask = reduce(and_, masks) if masks else None
    options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap or None, "query_offset": offset}
    out, lse = mha.attention_state(query, key, value, **options)
    scores = _scores(backend, query, key, value, lse, options, qk_matmul_output_mode)
    return [_joined(backend, out) if flat else out, key, value, scores]


def _scores(backend: BackendUnderTest, query: Any, key: Any, value: Any, lse: Any, options: dict[str, Any], mode: int) -> Any:
    """Return the scores of ``qk_matmul_output_mode``, as log(weights) + lse.

    0: scaled scores, 1: with the softcap, 2: with mask and bias too, 3: the weights.
    """
    if mode == 3:
        return mha.attention_weights(query, key, lse, **options)
    options = options | dict.fromkeys({0: ("softcap", "mask", "bias"), 1: ("mask", "bias"), 2: ()}[mode])
    lse = mha.attention_state(query, key, value, **options).lse
    weights = backend.numpy(mha.attention_weights(query, key, lse, **options)).astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.log(weights) + backend.numpy(lse).astype(np.float64)[..., None]


def _rotary(
    backend: BackendUnderTest, x: dict[str, Any], *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
) -> list[Any]:
    y, cos, sin = x["X"], x["cos_cache"], x["sin_cache"]
    flat = y.ndim == 3
    y = _heads(backend, y, num_heads) if flat else y
    if "position_ids" in x:
        cos, sin = (mha.embedding(x["position_ids"], table) for table in (cos, sin))
    y = mha.rotary(y, cos[:, None, :, :], sin[:, None, :, :], interleaved=bool(interleaved))
    return [_joined(backend, y) if flat else y]


def _layer_norm(
    backend: BackendUnderTest, x: dict[str, Any], *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> list[Any]:
    shape = tuple(x["X"].shape)
    kept = (*shape[: axis % len(shape)], *(1 for _ in shape[axis % len(shape) :]))
    y, weight, bias = _last_axis(backend, axis, x["X"], x["Scale"], x.get("B"))
    wide = backend.numpy(y).astype(np.float64)
    inverse = 1 / np.sqrt(wide.var(axis=-1) + epsilon)
    normed = backend.xp.reshape(mha.layer_norm(y, weight, bias, eps=epsilon), shape)
    return [normed, wide.mean(axis=-1).reshape(kept), inverse.reshape(kept)]


def _rms_norm(
    backend: BackendUnderTest, x: dict[str, Any], *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> list[Any]:
    y, weight, _ = _last_axis(backend, axis, x["X"], x["scale"], None)
    return [backend.xp.reshape(mha.rms_norm(y, weight, eps=epsilon), tuple(x["X"].shape))]


def _gelu(backend: BackendUnderTest, x: dict[str, Any], *, approximate: bytes = b"none") -> list[Any]:
    name: Any = approximate.decode()
    return [mha.gelu(x["X"], approximate=name)]


def _softmax(backend: BackendUnderTest, x: dict[str, Any], *, axis: int = -1) -> list[Any]:
    """Compute softmax as attention weights over heads of width 0, with the input as bias."""
    xp, y = backend.xp, backend.xp.moveaxis(x["input"], axis, -1)
    if y.ndim == 1:
        y = y[None, :]
    nothing, keys = (xp.zeros((*y.shape[:-2], n, 0), dtype=y.dtype, device=device_of(y)) for n in y.shape[-2:])
    weights = mha.attention_weights(nothing, keys, bias=y)
    return [xp.moveaxis(xp.reshape(weights, tuple(y.shape)), -1, axis) if x["input"].ndim > 1 else weights[0, :]]


OPERATORS: dict[str, Callable[..., list[Any]]] = {
    "Attention": _attention,
    "FlexAttention": flex_attention,
    "RotaryEmbedding": _rotary,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "Gelu": _gelu,
    "Softmax": _softmax,
}
"""Functions that compute the nodes of ONNX operators: the inputs by name and the attributes give the outputs."""


def _heads(backend: BackendUnderTest, y: Any, count: int) -> Any:
    """(batch, length, heads * d) -> (batch, heads, length, d)."""
    return backend.xp.moveaxis(split_axis(backend.xp, y, -1, (count, y.shape[-1] // count)), -3, -2)


def _joined(backend: BackendUnderTest, y: Any) -> Any:
    """(batch, heads, length, d) -> (batch, length, heads * d)."""
    batch, heads, length, width = y.shape
    return backend.xp.reshape(backend.xp.moveaxis(y, -3, -2), (batch, length, heads * width))


def _last_axis(backend: BackendUnderTest, axis: int, x: Any, *parts: Any) -> list[Any]:
    """Return x with its axes from ``axis`` on joined into one, and each part with one axis."""
    reshape, shape = backend.xp.reshape, tuple(x.shape)
    joined = reshape(x, (*shape[: axis % len(shape)], -1))
    return [joined, *(None if part is None else reshape(part, (-1,)) for part in parts)]


def _padded(backend: BackendUnderTest, mask: Any, keys: int, boolean: bool) -> Any:
    """Extend a mask to all keys: keys that it does not reach are masked."""
    shape = (*mask.shape[:-1], keys - mask.shape[-1])
    if not shape[-1]:
        return mask
    rest = backend.array(
        np.zeros(shape, dtype=bool) if boolean else np.full(shape, -np.inf), str(mask.dtype).rpartition(".")[2]
    )
    return backend.xp.concat([mask, rest], axis=-1)
