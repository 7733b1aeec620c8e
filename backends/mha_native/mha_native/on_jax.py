"""The kernel on JAX arrays on the CPU, inside of compiled programs too, and its gradients as JAX asks for them."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.custom_derivatives import SymbolicZero

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call, Outline, attend_vjp

from . import gradients, problem, xla

_DTYPES = ("float32", "float64", "float16", "bfloat16")


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    devices = getattr(call.device, "device_set", {call.device})
    if len(devices) > 1:
        return f"computes on one device, not on {len(devices)}: shard the call by jax.shard_map"
    (device,) = devices
    platform = jax.default_backend() if device is None else device.platform  # None: an array that is traced
    if platform != "cpu":
        return f"computes on the CPU, not on {platform}"
    if call.dtype_name not in _DTYPES:
        return f"does not support {call.dtype}"
    return xla.reason_against() or problem.supports(call)


def attention(p: AttentionProblem) -> AttentionState:
    """Attention as ``mha_core`` defines it. Every call returns the same bits, for any number of threads."""
    outline = _outline(p)
    return _state(outline, xla.varying_alike([*outline.arrays(p)]))


def prepare(p: AttentionProblem) -> Callable[..., AttentionState] | None:
    """Return a function (query, key, value, sink) -> state, if the problem has no other arrays."""
    if p.features - problem.WITHOUT_ARRAYS:
        return None
    outline = _outline(p)
    if len([*outline.arrays(p)]) > sum(x is not None for x in (p.query, p.key, p.value, p.sink)):
        return None  # a mask may hold arrays that no pair of this problem needs

    def compute(*arrays: Array | None) -> AttentionState:
        return _state(outline, xla.varying_alike([x for x in arrays if x is not None]))

    return compute


def attention_vjp(
    p: AttentionProblem, state: AttentionState, d_out: Array, d_lse: Array | None, wanted: Set[str]
) -> AttentionGradients:
    """The gradients of attention as ``mha_core`` defines them. Every call returns the same bits, for any number of threads."""
    outline = _outline(p)
    arrays, tree = jax.tree.flatten(([*outline.arrays(p)], state, d_out, d_lse))
    return _gradients(outline, frozenset(wanted), *jax.tree.unflatten(tree, xla.varying_alike(arrays)))


def _outline(p: AttentionProblem) -> Outline:
    return Outline.of(p.with_arrays(p.query, p.key, p.value, asked=frozenset()), Array)


# What is compiled is kept by the outline. The gradients of each function go through the operation attention_vjp, and so to the
# first kernel that computes what is wanted: this one, or another for gradients of a bias, and for gradients of gradients.


@partial(jax.jit, static_argnums=0)
def _attend(outline: Outline, arrays: list[Array]) -> AttentionState:
    return xla.attend(outline.filled(arrays))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _state(outline: Outline, arrays: list[Array]) -> AttentionState:
    return _attend(outline, arrays)


def _state_forward(outline: Outline, arrays: list[Any]) -> tuple[AttentionState, Any]:
    """Return the state, and what the gradients need: the arrays, the state, and the names of what they are wanted of."""
    wanted = dict.fromkeys(outline.names(x.perturbed for x in arrays))
    arrays = [x.value for x in arrays]
    state = _state(outline, arrays)  # and not _attend, which has no gradients: those of gradients go through this state
    return state, (arrays, state, wanted)


def _state_backward(outline: Outline, saved: Any, d: AttentionState) -> tuple[list[Array | None]]:
    arrays, state, wanted = saved
    d_out, d_lse = (None if isinstance(x, SymbolicZero) else x for x in d)
    p = outline.filled(arrays)
    found = attend_vjp(p, state, d_out, d_lse, frozenset(wanted))
    return (outline.placed(p, found, None if found.bias is None else [found.bias]),)  # no bias here has a second array


_state.defvjp(_state_forward, _state_backward, symbolic_zeros=True)


@partial(jax.jit, static_argnums=(0, 1))
def _attend_vjp(
    outline: Outline, wanted: frozenset[str], arrays: list[Array], state: AttentionState, d_out: Array, d_lse: Array | None
) -> AttentionGradients:
    p = outline.filled(arrays)
    return gradients.attention_vjp(p, state, d_out, d_lse, wanted, partial(xla.gradients, p, state, d_lse))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(outline: Outline, wanted: frozenset[str], *arguments: Any) -> AttentionGradients:
    return _attend_vjp(outline, wanted, *arguments)


def _gradients_forward(outline: Outline, wanted: frozenset[str], *arguments: Any) -> tuple[AttentionGradients, Any]:
    return _gradients(outline, wanted, *arguments), arguments


def _gradients_backward(outline: Outline, wanted: frozenset[str], arguments: Any, d: AttentionGradients) -> Any:
    def by_another(arrays: list[Array], state: AttentionState, d_out: Array, d_lse: Array | None) -> AttentionGradients:
        return attend_vjp(outline.filled(arrays), state, d_out, d_lse, wanted, asked=frozenset({"gradient"}))

    return jax.vjp(by_another, *arguments)[1](d)


_gradients.defvjp(_gradients_forward, _gradients_backward)
