"""Backends and kernels that break one promise each; tests/test_conformance.py has the suite find every one of them.

``pytest --plugin faulty_plugins``, with MHA_FAULT naming one of ``FAULTS``.
"""

import os
from dataclasses import replace

import numpy as np

from mha_core.plugin import AttentionState, Backend, Kernel, hookimpl

EVERYTHING = frozenset({"lse", "value_dim", "broadcast", "grouped_query", "softcap"})
FAULTS = {  # name: what the kernel declares
    "right": EVERYTHING,
    "scale": EVERYTHING,
    "last_key": EVERYTHING,
    "lse_base_2": EVERYTHING,
    "writes": EVERYTHING,
    "ignores_softcap": EVERYTHING,
    "ignores_sink": EVERYTHING | {"sink"},
    "ignores_causal": EVERYTHING | {"causal"},
    "swaps_groups": EVERYTHING,
    "dtype": EVERYTHING,
    "unknown_feature": EVERYTHING | {"casual"},
    "crashes": EVERYTHING,
    "half_precision": EVERYTHING,
    "gelu": frozenset(),
}


def attention(p):
    """Dense attention that is right but for the fault that is asked for."""
    fault = os.environ["MHA_FAULT"]
    if fault == "crashes":
        raise RuntimeError("out of luck")
    if fault == "writes":
        p.query[...] *= 1.0 + 2.0**-10
    if fault == "last_key" and p.key.shape[-2] > 1:
        p = replace(p, key=p.key[..., :-1, :], value=p.value[..., :-1, :])
    wide = p.compute_dtype
    query, key, value = (x.astype(wide) for x in (p.query, p.key, p.value))
    spread = np.tile if fault == "swaps_groups" else lambda x, _: np.repeat(x, p.num_groups, axis=-3)
    key, value = (spread(x, (p.num_groups, 1, 1)) for x in (key, value))
    s = query @ np.swapaxes(key, -1, -2) * (p.scale * 1.01 if fault == "scale" else p.scale)
    if p.softcap is not None and fault != "ignores_softcap":
        s = p.softcap * np.tanh(s / p.softcap)
    if fault == "half_precision":
        s = s.astype(np.float16).astype(wide)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.where(np.isfinite(top), top, 0) + np.log(total))[..., 0]
    lse = np.broadcast_to(lse / np.log(2) if fault == "lse_base_2" else lse, p.rows_shape).astype(wide)
    out = e @ value / np.where(total == 0, 1, total)
    return AttentionState(out.astype(np.float64 if fault == "dtype" else p.query.dtype), lse)


def gelu(x, *, approximate):
    """The tanh form, whichever was asked for."""
    return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(x.dtype)


def _missing():
    import no_such_library

    return no_such_library


@hookimpl
def mha_backends():
    yield Backend("lame", 1, ("lame:Array",), _missing, install="pip install lame-library")


@hookimpl
def mha_kernels():
    fault = os.environ.get("MHA_FAULT")
    if fault is not None:
        op = "gelu" if fault == "gelu" else "attention"
        yield Kernel("numpy", op, "faulty", 1, f"faulty_plugins:{op}", priority=9, handles=FAULTS[fault])
