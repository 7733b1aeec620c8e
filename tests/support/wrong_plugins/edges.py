"""Kernels that are wrong only beyond an edge: an act of ``ACTS`` where a condition holds.

They are right on every shorter, narrower or simpler problem, so a list of problems written by hand does not find them all.
Every condition has an operator, but not every operator, since judging a kernel takes seconds.
"""

CONDITIONS = {
    "long_keys": (lambda p: p.key.shape[-2] > 1000, "with more than 1000 keys"),
    "keys_of_257": (lambda p: p.key.shape[-2] == 257, "with 257 keys"),
    "keys_of_15": (lambda p: p.key.shape[-2] == 15, "with 15 keys"),
    "long_queries": (lambda p: p.query.shape[-2] > 4095, "with more than 4095 queries"),
    "width_80": (lambda p: p.query.shape[-1] == 80, "with heads of width 80"),
    "width_1": (lambda p: p.query.shape[-1] == 1, "with heads of width 1"),
    "wide_values": (lambda p: p.value.shape[-1] > 160, "with values wider than 160"),
    "groups_of_three": (lambda p: p.num_groups == 3, "with three query heads for each key head"),
    "two_batch_axes": (lambda p: len(p.batch_shape) == 2, "with two batch axes"),
    "shared_query": (lambda p: p.query.shape[:-3] != p.batch_shape, "with a query that is broadcast"),
    "negative_scale": (lambda p: p.scale < 0, "with a negative scale"),
    "far_offset": (lambda p: isinstance(p.offset, int) and p.offset >= 70, "with an offset of 70 and more"),
    "negative_offset": (lambda p: isinstance(p.offset, int) and p.offset < 0, "with a negative offset"),
    "offset_array": (lambda p: not isinstance(p.offset, int), "with an offset for each batch element"),
    "no_lse": (lambda p: "lse" not in p.asked, "without lse"),
    "huge_scores": (lambda p: p.query.size and abs(p.query).max() > 500, "with scores in the hundreds"),
    "tiny_scores": (lambda p: p.query.size and abs(p.query).max() < 1e-4, "with scores near 0"),
    "many_sequences": (lambda p: len(p.structure.packed or ()) > 255, "with more than 255 packed sequences"),
    "empty_sequence": (lambda p: 0 in (p.structure.packed or ()), "with an empty packed sequence"),
    "mask_of_heads": (lambda p: getattr(p.structure.array, "ndim", 0) == 3, "with a mask for each head"),
    "length_0": (lambda p: p.structure.key_lengths is not None and 0 in p.structure.key_lengths, "with a length of 0"),
    "bias_of_keys": (lambda p: _bias(p) is not None and _bias(p).shape[-2] == 1, "with one bias for all queries"),
    "infinite_bias": (lambda p: _bias(p) is not None and (abs(_bias(p)) == float("inf")).any(), "with a bias of -inf"),
    "large_sink": (lambda p: p.sink is not None and p.sink.size and p.sink.max() > 15, "with a large sink"),
    "loose_softcap": (lambda p: p.softcap is not None and p.softcap > 10, "with a softcap above 10"),
}
OPERATORS = {
    "drops": "the value of the last key counts as 0",
    "shifts": "each query gets the answer of the one before",
    "aliases": "all heads get the answer of the first",
    "rounds": "the output is rounded to float16",
    **{f"ignores_the_{option}": f"the {option} is ignored" for option in ("mask", "bias", "sink", "softcap")},
}
APPLIED = {
    "drops": "long_keys groups_of_three far_offset huge_scores length_0",
    "shifts": "keys_of_257 width_80 two_batch_axes negative_offset tiny_scores bias_of_keys",
    "aliases": "keys_of_15 width_1 shared_query offset_array many_sequences infinite_bias",
    "rounds": "long_queries wide_values negative_scale no_lse empty_sequence large_sink",
    "ignores_the_mask": "many_sequences empty_sequence mask_of_heads",
    "ignores_the_bias": "bias_of_keys infinite_bias",
    "ignores_the_sink": "large_sink",
    "ignores_the_softcap": "loose_softcap",
}
"""The conditions under which each operator is applied."""
EDGES = {f"{name}_{operator}": (name, operator) for operator, names in APPLIED.items() for name in names.split()}
FAULTS = {kernel: f"{OPERATORS[operator]} {CONDITIONS[name][1]}" for kernel, (name, operator) in EDGES.items()}


def _bias(p):
    return getattr(p.bias, "array", getattr(p.bias, "b", None))


def __getattr__(name):
    """Return a kernel. Only then is NumPy imported: the table of plugins, which reads FAULTS, must not import it."""
    if name not in EDGES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    from . import operators

    condition, operator = EDGES[name]
    holds, changed = CONDITIONS[condition][0], getattr(operators, operator)
    return lambda p: (changed if holds(p) else operators.right)(p)
