"""A kernel of ``attention_vjp`` with one of many faults, each a change of one step of ``WholeGradients``."""

from functools import cached_property
from itertools import count

import numpy as np
from whole_gradients import WholeGradients

from mha_conformance.oracle.attention_gradients import summed_to
from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import Kernel, hookimpl

NAME = "whole arrays"


def half(x):
    return np.asarray(x).astype(np.float16).astype(np.float64)


def without(x, keys):
    """Return weights, or gradients of scores, without those of some keys."""
    x = x.copy()
    x[..., keys] = 0
    return x


def all_but_the_last(size):
    """Return where the last of several is not."""
    return np.arange(size) != max(1, size - 1)


def weights_of_a_row_without_the_sink(call, weights):
    return weights / np.where(call.blind, 1, weights.sum(axis=-1))[..., None]


def last_feature_missing(call, ds):
    kept = all_but_the_last(call.value.shape[-1])
    of_weights = call.kept * ((call.d_out * kept) @ np.swapaxes(call.value, -1, -2))
    return call.weights * (of_weights - call.delta[..., None])


def groups_tiled(call, right, x, shape):
    tiled = x.reshape(*x.shape[:-3], call.problem.num_groups, shape[-3], *x.shape[-2:])
    return summed_to(tiled.sum(axis=-4), shape)


def first_where_broadcast(call, right, x, shape):
    x = x[(0,) * (x.ndim - len(shape))] if 0 not in x.shape else summed_to(x, x.shape[x.ndim - len(shape) :])
    for axis, size in enumerate(shape):
        x = np.take(x, [0], axis=axis) if size == 1 and x.shape[axis] else x
    return summed_to(x, shape)


def sink_of_one_element(call, d_sink):
    terms = call.sink_terms.sum(axis=-1)
    return d_sink if 0 in terms.shape else -terms.reshape(-1, len(d_sink))[0]


def causal_off_by_one(call, allowed):
    low, high = call.problem.structure.band
    return allowed | np.broadcast_to(call.distance == 1, call.shape) if low is None and high is not None else allowed


def narrower_window(call, allowed):
    if not call.problem.structure.band[0]:
        return allowed
    pairs = np.broadcast_to(np.any(allowed, axis=tuple(range(allowed.ndim - 2))), call.distance.shape)
    if not pairs.any():
        return allowed
    return allowed & np.broadcast_to(call.distance > call.distance[pairs].min(), call.shape)


calls = count(1)


def other_bits(call, gradients):
    factor = np.float32(1 + 2.0**-20 * (next(calls) % 2))
    return gradients if gradients.query is None else gradients._replace(query=gradients.query * factor)


def of_the_first_pullback(call, gradients, _kept=[None, None]):  # noqa: B006
    if _kept[0] is not call.state.out:
        _kept[:] = call.state.out, gradients
    return _kept[1]


def writes_into_d_out(call, gradients):
    if call.given_d_out.flags.writeable:
        call.given_d_out *= 2
    return gradients


def key_only_with_query(call, gradients):
    return gradients if gradients.key is None or "query" in call.wanted else gradients._replace(key=0 * gradients.key)


# fault: (step, function of the call and of what the step, or its arguments too, rightly is)
CHANGES = {
    # scores and weights
    "the scale is 1% off": ("da", lambda call, da: 1.01 * da),
    "the sign of the scale is lost": ("da", lambda call, da: da if call.scale >= 0 else -da),
    "the gradient of the key lacks the scale": ("of_key", lambda call, d_key: d_key / (call.scale or 1.0)),
    "the slope of the softcap is missing": ("slope", lambda call, slope: np.ones_like(slope)),
    "the slope of the softcap is 1 - tanh": (
        "slope",
        lambda call, slope: slope if call.problem.softcap is None else 1 - call.capped / call.problem.softcap,
    ),
    "lse is rounded to half precision": ("lse", lambda call, lse: half(lse)),
    "weights are rounded to half precision": ("weights", lambda call, weights: half(weights)),
    "the weights of a row are relative to the greatest": (
        "weights",
        lambda call, weights: weights / np.maximum(weights.max(axis=-1, keepdims=True, initial=0), 1e-30),
    ),
    "the sink does not count in the weights": ("weights", weights_of_a_row_without_the_sink),
    "the gradients of the scores keep 8 bits": ("ds", lambda call, ds: ds * (1 + 2.0**-8 * np.sign(np.sin(1e3 * ds)))),
    # delta
    "delta is missing": ("delta", lambda call, delta: -call.d_lse),
    "delta is rounded to half precision": ("delta", lambda call, delta: half(delta)),
    "delta has the output of the first query": ("out", lambda call, out: out[..., :1, :] + 0 * out),
    "d_lse is ignored": ("d_lse", lambda call, d_lse: 0 * d_lse),
    "d_lse has the wrong sign": ("d_lse", lambda call, d_lse: -d_lse),
    "all heads have the d_lse of the first": ("d_lse", lambda call, d_lse: d_lse[..., :1, :] + 0 * d_lse),
    "the last of several features of the values is left out of the gradients of the scores": ("ds", last_feature_missing),
    "dropout is ignored": ("kept", lambda call, kept: 1.0),
    "weights that are kept are not divided by 1 - rate": ("kept", lambda call, kept: np.sign(kept)),
    # blocks
    "only the last block of 16 keys counts": (
        "ds",
        lambda call, ds: without(ds, slice(0, (max(ds.shape[-1], 1) - 1) // 16 * 16)),
    ),
    "the last of several keys is dropped": ("ds", lambda call, ds: without(ds, slice(max(1, ds.shape[-1] - 1), None))),
    "the 17th key is dropped": ("weights", lambda call, weights: without(weights, slice(16, 17))),
    "the last of several queries has no gradient": (
        "of_query",
        lambda call, d_query: d_query * all_but_the_last(d_query.shape[-2])[:, None],
    ),
    "the d_out of the last of several heads is ignored": (
        "d_out",
        lambda call, d_out: d_out * all_but_the_last(d_out.shape[-3])[:, None, None],
    ),
    # sums
    "the query heads of a key head are not summed: the first is used": (
        "over_groups",
        lambda call, right, x: x[..., 0, :, :],
    ),
    "query heads are tiled over key heads, not in groups": ("by_key_head", groups_tiled),
    "axes that broadcast are not summed: the first element is used": ("summed", first_where_broadcast),
    "axes that broadcast are averaged": (
        "summed",
        lambda call, right, x, shape: right * (np.prod(shape) / x.size if x.size else 1.0),
    ),
    "all elements of the batch have the gradient of the first value": (
        "of_value",
        lambda call, d_value: d_value[:1] + 0 * d_value if d_value.ndim > 3 else d_value,
    ),
    # biases
    "the gradient of the bias is taken after the slope of the softcap": ("of_pairs", lambda call, ds: ds * call.slope),
    "the gradient of the bias is multiplied by the scale": ("of_pairs", lambda call, ds: ds * call.scale),
    "the gradient of the bias lacks delta": ("of_pairs", lambda call, ds: ds + call.weights * call.delta[..., None]),
    "pairs that do not attend have gradients of 1e-30, not 0": ("of_pairs", lambda call, ds: ds + 1e-30),
    "the buckets of the table are those of the next distance": ("distance", lambda call, distance: distance + 1),
    "the buckets of the table are those of query - key": ("distance", lambda call, distance: -distance),
    # the sink
    "the gradient of the sink has the wrong sign": ("of_sink", lambda call, d_sink: -d_sink),
    "the gradient of the sink is that of one element of the batch": ("of_sink", sink_of_one_element),
    "the gradient of the sink lacks d_lse": ("sink_terms", lambda call, terms: terms + call.sink_weights * call.d_lse),
    "the weight of the sink is 1": ("sink_weights", lambda call, weights: np.ones_like(weights)),
    # a state of more keys
    "the output is that of the given keys": ("out", lambda call, out: (call.weights * call.kept) @ call.value),
    "delta is a sum over the given keys": (
        "delta",
        lambda call, delta: np.sum(call.weights * call.d_weights, axis=-1) - call.d_lse,
    ),
    # masks
    "causal masks let one key more through": ("allowed", causal_off_by_one),
    "windows are a key narrower": ("allowed", narrower_window),
    "array masks are ignored": ("allowed", lambda call, allowed: allowed | (call.problem.structure.array is not None)),
    "packed sequences see each other": ("allowed", lambda call, allowed: allowed | (call.problem.structure.packed is not None)),
    "key_lengths is ignored": ("allowed", lambda call, allowed: allowed | (call.problem.structure.key_lengths is not None)),
    "queries that see nothing attend to all keys alike": (
        "weights",
        lambda call, weights: np.where(call.blind[..., None], 1 / max(1, call.shape[-1]), weights),
    ),
    "the d_out of queries that see nothing is multiplied by 0": (
        "d_out",
        lambda call, d_out: np.asarray(call.given_d_out, dtype=np.float64),
    ),
    "gradients of keys that are 0 become 1e-30": ("of_key", lambda call, d_key: np.where(d_key == 0, 1e-30, d_key)),
    # the call
    "a second call gives other bits": ("gradients", other_bits),
    "d_out is scaled in place": ("gradients", writes_into_d_out),
    "another pullback gives the gradients of the first": ("gradients", of_the_first_pullback),
    "the gradient of the key is 0 unless that of the query is wanted": ("gradients", key_only_with_query),
}


def changed(step, function):
    """Return ``WholeGradients`` with one step changed."""
    right = getattr(WholeGradients, step)
    if isinstance(right, cached_property):
        wrong = cached_property(lambda call: function(call, right.func(call)))
        wrong.__set_name__(None, step)
    else:
        wrong = lambda call, *arguments: function(call, right(call, *arguments), *arguments)  # noqa: E731
    return type("WrongGradients", (WholeGradients,), {step: wrong})


FAULTS = {fault: changed(*change) for fault, change in CHANGES.items()}


class GradientPlugin:
    """Registers a class as a kernel for NumPy that declares every feature; the last one made computes."""

    def __init__(self, cls):
        chosen.append(cls)

    @hookimpl
    def mha_kernels(self):
        load, handles = f"{__name__}:compute", FEATURES["attention_vjp"]
        yield Kernel("numpy", "attention_vjp", NAME, api=1, load=load, handles=handles, opt_in=True)


chosen = []


def compute(problem, state, d_out, d_lse, wanted):
    with np.errstate(all="ignore"):
        return chosen[-1](problem, state, d_out, d_lse, wanted).gradients()
