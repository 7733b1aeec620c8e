"""The compiled module as functions that XLA calls, on the arrays of JAX: one operation of a compiled program each."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

from mha_core.plugin import AttentionProblem, AttentionState

from . import problem
from .gradients import padded_width
from .level import native

_ORDER = (
    *("query", "key", "value", "out", "lse", "sink", "mask", "bias", "distance"),
    *("d_out", "d_lse", "d_query", "d_key", "d_value", "lengths"),
)
"""The arrays of a call, as in src/arguments.h and src/ffi.cpp."""
_FAR = 1 << 40
"""A limit of a band that excludes no pair."""
_ATTEND, _ATTEND_VJP = "mha_native.attend", "mha_native.attend_vjp"


@cache
def reason_against() -> str | None:
    """Let XLA call the compiled module from now on. Return why it cannot, or None."""
    handlers = native.xla_handlers()
    if handlers is None:
        return "was compiled without the headers of XLA: install jaxlib, then mha-native from its source"
    try:
        for name, handler in zip((_ATTEND, _ATTEND_VJP), handlers, strict=True):
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except jax.errors.JaxRuntimeError as error:
        return f"is refused by XLA, so install mha-native from its source with the jaxlib of this JAX: {error}"
    return None


def attend(p: AttentionProblem) -> AttentionState:
    """Return the state of a problem."""
    shapes = {"out": ((*p.rows_shape, p.value.shape[-1]), p.query.dtype), "lse": ((*p.rows_shape, 1), p.compute_dtype)}
    results = _called(_ATTEND, p, _arrays(p), shapes)
    return AttentionState(results["out"], results["lse"][..., 0])


def gradients(
    p: AttentionProblem, state: AttentionState, d_lse: Array | None, names: Sequence[str], d_out: Array
) -> Mapping[str, Array]:
    """Return the gradients of some of query, key and value, with padded rows, in the dtype of lse."""
    towards = {"out": state.out, "lse": state.lse[..., None], "d_out": d_out}
    if d_lse is not None:
        towards["d_lse"] = d_lse[..., None]
    shapes = {f"d_{name}": ((*x.shape[:-1], padded_width(p, x)), p.compute_dtype) for name in names for x in [getattr(p, name)]}
    results = _called(_ATTEND_VJP, p, _arrays(p) | towards, shapes)
    return {name: results[f"d_{name}"] for name in names}


def _arrays(p: AttentionProblem) -> dict[str, Array | None]:
    beside = problem.beside(p, _LIBRARY)._asdict()
    sink = None if p.sink is None else p.sink[:, None, None]
    return {"query": p.query, "key": p.key, "value": p.value, "sink": sink, **beside}


def _lengths(lengths: Array, batch_shape: tuple[int, ...]) -> Array:
    return jnp.clip(lengths, 0, 2**31 - 1).astype(jnp.int32)[..., None, None, None]


_LIBRARY = problem.Library(view=lambda x: x, lengths=_lengths, dense=lambda x, dtype: x.astype(dtype))


def _called(
    target: str, p: AttentionProblem, arrays: Mapping[str, Any], shapes: Mapping[str, tuple[tuple[int, ...], Any]]
) -> dict[str, Array]:
    """Return the results of a call, which have these shapes and dtypes, by name."""
    ndim = len(p.batch_shape) + 3
    given = [name for name in _ORDER if arrays.get(name) is not None]
    # all of one number of axes, so that those that vmap adds in front belong together
    operands = [jnp.reshape(arrays[name], (1,) * (ndim - arrays[name].ndim) + arrays[name].shape) for name in given]
    results = jax.eval_shape(
        lambda x: [jnp.broadcast_to(jnp.ravel(x)[0], s).astype(d) for s, d in shapes.values()], operands[0]
    )
    call: Any = jax.ffi.ffi_call(target, results, vmap_method="expand_dims")
    return dict(zip(shapes, call(*operands, options=_options(p, [*given, *shapes], arrays["sequences"])), strict=True))


def _options(p: AttentionProblem, names: Sequence[str], sequences: Any) -> bytes:
    """Return what a call has beside its arrays, as src/ffi.cpp reads it."""
    low, high = p.structure.band
    band = (low is not None or high is not None, -_FAR if low is None else low, _FAR if high is None else high)
    given = sum(1 << _ORDER.index(name) for name in names)
    return struct.pack("=4q2d", given, *band, p.scale, p.softcap or 0.0) + (b"" if sequences is None else sequences.tobytes())


def varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays that vary over the same axes of a mesh, as those of a call must inside of ``jax.shard_map``."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return list(arrays)
    either = reduce(jnp.logical_or, (jnp.ravel(x)[0] == 0 for x in arrays))
    return [jnp.where(either, x, x) for x in arrays]
