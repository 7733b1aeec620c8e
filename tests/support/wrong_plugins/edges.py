"""Kernels that are wrong only beyond an edge: each operator of mutation applies where a condition holds.

They are right on every shorter, narrower or simpler problem, so a list of problems written by hand does not find them all. The
table lists a fifth of them, with every operator and nearly every condition, since judging one takes seconds.
"""

from dataclasses import replace

import numpy as np

from mha_core.plugin import AttentionState

from .dense import right as right

CONDITIONS = {
    "long_keys": (lambda p: p.key.shape[-2] > 1000, "with more than 1000 keys"),
    "keys_of_257": (lambda p: p.key.shape[-2] == 257, "with 257 keys"),
    "keys_of_15": (lambda p: p.key.shape[-2] == 15, "with 15 keys"),
    "long_queries": (lambda p: p.query.shape[-2] > 4095, "with more than 4095 queries"),
    "one_query": (lambda p: p.query.shape[-2] == 1, "with one query"),
    "width_80": (lambda p: p.query.shape[-1] == 80, "with heads of width 80"),
    "width_1": (lambda p: p.query.shape[-1] == 1, "with heads of width 1"),
    "wide_values": (lambda p: p.value.shape[-1] > 160, "with values wider than 160"),
    "six_key_heads": (lambda p: p.key.shape[-3] == 6, "with six key heads"),
    "groups_of_three": (lambda p: p.num_groups == 3, "with three query heads for each key head"),
    "two_batch_axes": (lambda p: len(p.batch_shape) == 2, "with two batch axes"),
    "shared_query": (lambda p: p.query.shape[:-3] != p.batch_shape, "with a query that is broadcast"),
    "negative_scale": (lambda p: p.scale < 0, "with a negative scale"),
    "scale_of_zero": (lambda p: p.scale == 0, "with a scale of 0"),
    "far_offset": (lambda p: isinstance(p.offset, int) and p.offset >= 70, "with an offset of 70 and more"),
    "negative_offset": (lambda p: isinstance(p.offset, int) and p.offset < 0, "with a negative offset"),
    "offset_array": (lambda p: not isinstance(p.offset, int), "with an offset for each batch element"),
    "no_lse": (lambda p: "lse" not in p.asked, "without lse"),
    "transposed": (lambda p: not p.query.flags.c_contiguous, "with a query that is not contiguous"),
    "huge_scores": (lambda p: p.query.size and abs(p.query).max() > 500, "with scores in the hundreds"),
    "tiny_scores": (lambda p: p.query.size and abs(p.query).max() < 1e-4, "with scores near 0"),
}
WITH_MASKS = {
    "many_sequences": (lambda p: len(p.structure.packed or ()) > 255, "with more than 255 packed sequences"),
    "empty_sequence": (lambda p: 0 in (p.structure.packed or ()), "with an empty packed sequence"),
    "mask_of_heads": (lambda p: np.ndim(p.structure.array) == 3, "with a mask for each head"),
    "length_0": (lambda p: p.structure.key_lengths is not None and 0 in p.structure.key_lengths, "with a length of 0"),
}
WITH_BIASES = {
    "bias_of_keys": (lambda p: _bias(p) is not None and _bias(p).shape[-2] == 1, "with one bias for all queries"),
    "infinite_bias": (lambda p: _bias(p) is not None and np.isinf(_bias(p)).any(), "with a bias of -inf"),
}
WITH_SINKS = {"large_sink": (lambda p: p.sink is not None and p.sink.size and p.sink.max() > 15, "with a large sink")}
WITH_CAPS = {"loose_softcap": (lambda p: p.softcap is not None and p.softcap > 10, "with a softcap above 10")}


def _bias(p):
    return getattr(p.bias, "array", getattr(p.bias, "b", None))


def _dropped(p):
    if not p.key.shape[-2]:
        return right(p)
    value = p.value.copy()
    value[..., -1, :] = 0
    return right(replace(p, value=value))


def _shifted(p):
    out, lse = right(p)
    return AttentionState(np.roll(out, 1, axis=-2), lse)


def _aliased(p):
    out, lse = right(p)
    return AttentionState(np.broadcast_to(out[..., :1, :, :], out.shape).copy(), lse)


def _rounded(p):
    out, lse = right(p)
    return AttentionState(out.astype(np.float16).astype(out.dtype), lse)


OPERATORS = {
    "drops": (_dropped, "the value of the last key counts as 0"),
    "shifts": (_shifted, "each query gets the answer of the one before"),
    "aliases": (_aliased, "all heads get the answer of the first"),
    "rounds": (_rounded, "the output is rounded to float16"),
}
IGNORES = {
    "ignores_the_mask": (lambda p: right(replace(p, mask=None)), "the mask is ignored", WITH_MASKS),
    "ignores_the_bias": (lambda p: right(replace(p, bias=None)), "the bias is ignored", WITH_BIASES),
    "ignores_the_sink": (lambda p: right(replace(p, sink=None)), "the sink is ignored", WITH_SINKS),
    "ignores_the_softcap": (lambda p: right(replace(p, softcap=None)), "the softcap is ignored", WITH_CAPS),
}
SENSELESS = {("one_query", "shifts"), ("length_0", "ignores_the_mask")}
"""Mutants that change no answer, or only for problems that the condition excludes."""


def _mutants():
    """Yield the name, the function and the fault of each mutant."""
    everywhere = {**CONDITIONS, **WITH_MASKS, **WITH_BIASES, **WITH_SINKS, **WITH_CAPS}
    pairs = [(name, *one, operator, *act) for name, one in everywhere.items() for operator, act in OPERATORS.items()]
    pairs += [
        (name, *one, operator, act, fault)
        for operator, (act, fault, conditions) in IGNORES.items()
        for name, one in conditions.items()
    ]
    for name, holds, where, operator, act, fault in pairs:
        if (name, operator) not in SENSELESS:
            yield f"{name}_{operator}", _where(holds, act), f"{fault} {where}"


def _where(holds, act):
    return lambda p: act(p) if holds(p) else right(p)


FAULTS = {}
"""The fault of each mutant, by its name."""
for _name, _kernel, _fault in _mutants():
    globals()[_name], FAULTS[_name] = _kernel, _fault
