"""The columns of docs/field.md that run here: attention of five libraries, with the same options.

Each function takes and returns NumPy arrays (B, H, L, D), and has only the options for which its library has an argument; any
other is a TypeError. ``PARAMETERS`` lists the arguments that each library has today; a test compares them.
"""

import inspect
import re
from functools import reduce
from operator import and_

import numpy as np
from needs import Library

import mha_core as mha

jax, jnp, keras, onnx, torch = map(Library, ("jax", "jax.numpy", "keras", "onnx", "torch"))
helper, reference, functional = map(Library, ("onnx.helper", "onnx.reference", "torch.nn.functional"))
COLUMNS = ("mha-core", "torch SDPA", "jax.nn", "Keras", "ONNX", "FlashInfer")


def ours(query, key, value, *, mask=None, bias=None, causal=False, window=None, lengths=None, softcap=None, sink=None):
    parts = [
        None if mask is None else mha.array_mask(mask),
        mha.causal() if causal else None,
        None if window is None else mha.window(*window),
        None if lengths is None else mha.key_lengths(lengths),
    ]
    present = [part for part in parts if part is not None]
    whole = reduce(and_, present) if present else None
    return mha.scaled_dot_product_attention(query, key, value, mask=whole, bias=bias, softcap=softcap, sink=sink)


def tensor(x):
    return None if x is None else torch.from_numpy(np.ascontiguousarray(x))  # no copy: memory is measured through this


def torch_sdpa(query, key, value, *, mask=None, bias=None, causal=False):
    added = bias if mask is None else mask
    grouped = query.shape[1] != key.shape[1]
    query, key, value, added = map(tensor, (query, key, value, added))
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=added, is_causal=causal, enable_gqa=grouped
    ).numpy()


def heads_behind(x):
    return None if x is None else np.swapaxes(x, 1, 2)


def jax_nn(query, key, value, *, mask=None, bias=None, causal=False, window=None, lengths=None):
    lengths = None if lengths is None else jnp.asarray(lengths, dtype=jnp.int32)
    out = jax.nn.dot_product_attention(
        *(jnp.asarray(heads_behind(x)) for x in (query, key, value)),
        mask=None if mask is None else jnp.asarray(mask),
        bias=None if bias is None else jnp.asarray(bias),
        is_causal=causal,
        local_window_size=window,
        key_value_seq_lengths=lengths,
    )
    return heads_behind(np.asarray(out))


def keras_ops(query, key, value, *, mask=None, bias=None, causal=False, softcap=None):
    out = keras.ops.dot_product_attention(
        *(tensor(heads_behind(x)) for x in (query, key, value)),
        mask=tensor(mask),
        bias=tensor(bias),
        is_causal=causal,
        attn_logits_soft_cap=softcap,
    )
    return heads_behind(out.numpy())


def onnx_attention(
    query, key, value, *, mask=None, bias=None, causal=False, window=None, lengths=None, softcap=None, weights=False
):
    """Attention-25, by ONNX's reference evaluator."""
    attributes = {"is_causal": int(causal), "softcap": softcap or 0.0}
    if window is not None:
        attributes |= {"left_window_size": window[0], "right_window_size": window[1]}
    feeds = {"Q": query, "K": key, "V": value, "M": bias if mask is None else mask, "": None, "N": lengths}
    feeds = {name: np.asarray(x) for name, x in feeds.items() if x is not None}
    inputs = [name if name in feeds else "" for name in ("Q", "K", "V", "M", "", "", "N")]
    outputs = ["Y", "", "", "W"] if weights else ["Y"]
    shapes = {"Y": (*query.shape[:-1], value.shape[-1]), "W": (*query.shape[:-1], key.shape[-2])}
    node = helper.make_node("Attention", inputs, outputs, **attributes, **({"qk_matmul_output_mode": 3} if weights else {}))
    kind = helper.np_dtype_to_tensor_dtype(query.dtype)
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()],
        [helper.make_tensor_value_info(name, kind, shapes[name]) for name in outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    onnx.checker.check_model(model, full_check=True)
    return reference.ReferenceEvaluator(model).run(None, feeds)[-1]


ATTEND = dict(zip(COLUMNS, (ours, torch_sdpa, jax_nn, keras_ops, onnx_attention), strict=False))


def torch_parameters():
    """Return the arguments of torch's function. It is written in C, and only its docstring lists them."""
    signature = re.match(r"\s*\w+\((.*?)\) ->", functional.scaled_dot_product_attention.__doc__ or "", re.DOTALL)
    assert signature, "the docstring of torch's function no longer begins with its signature"
    return {part.split("=")[0].strip() for part in signature[1].split(",")}


def onnx_parameters():
    schema = onnx.defs.get_schema("Attention", 25)
    return {x.name for x in (*schema.inputs, *schema.outputs)} | set(schema.attributes)


PARAMETERS = {
    "torch SDPA": (torch_parameters, "query key value attn_mask dropout_p is_causal scale enable_gqa"),
    "jax.nn": (
        lambda: set(inspect.signature(jax.nn.dot_product_attention).parameters),
        """query key value bias mask scale is_causal query_seq_lengths key_value_seq_lengths local_window_size implementation
        return_residual""",
    ),
    "Keras": (
        lambda: set(inspect.signature(keras.ops.dot_product_attention).parameters),
        "query key value bias mask scale is_causal flash_attention attn_logits_soft_cap",
    ),
    "ONNX": (
        onnx_parameters,
        """Q K V attn_mask past_key past_value nonpad_kv_seqlen Y present_key present_value qk_matmul_output is_causal
        kv_num_heads q_num_heads left_window_size right_window_size qk_matmul_output_mode scale softcap softmax_precision""",
    ),
}
