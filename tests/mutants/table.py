"""The modules that are mutated, and the kernels that judge the mutants of each."""

from __future__ import annotations

from typing import NamedTuple


class Judged(NamedTuple):
    """A kernel, or the algebra, on the problems of its covering design."""

    backend: str
    op: str
    kernel: str


ALGEBRA = "algebra"
TILES = (Judged("numpy", "attention", "tiles"),)
BY_ALGEBRA = (Judged("numpy", "attention", ALGEBRA),)
BOTH = BY_ALGEBRA + TILES
LAYERS = (Judged("numpy", "encoder_layer", "chunks"), Judged("numpy", "feed_forward", "chunks"))
SDPA = (Judged("torch", "attention", "sdpa"),)
TORCH_LAYER = (Judged("torch", "encoder_layer", "functional"),)


def _pieces(backend: str, kernel: str, *ops: str) -> tuple[Judged, ...]:
    return tuple(Judged(backend, op, kernel) for op in ops)


TABLE: dict[str, tuple[Judged, ...]] = {
    "mha_numpy.gelu": _pieces("numpy", "tiles", "gelu"),
    "mha_numpy.norms": _pieces("numpy", "chunks", "layer_norm", "rms_norm"),
    "mha_numpy.linear": (*_pieces("numpy", "chunks", "linear"), *_pieces("numpy", "half", "linear")),
    "mha_numpy.activations": LAYERS[::-1],
    "mha_numpy.layers": LAYERS,
    "mha_numpy.scratch": (*TILES, *LAYERS[:1]),
    "mha_numpy.attention.exponential": TILES,
    "mha_numpy.attention.few_pairs": TILES,
    "mha_numpy.attention.kernel": TILES,
    "mha_numpy.attention.masks_and_biases": TILES,
    "mha_numpy.attention.split": TILES,
    "mha_numpy.attention.subproblem": TILES,
    "mha_numpy.attention.tiles": TILES,
    "mha_core.algebra.activations": _pieces("numpy", ALGEBRA, "gelu", "relu", "silu"),
    "mha_core.algebra.arrays": BOTH,
    "mha_core.algebra.attention": BY_ALGEBRA,
    "mha_core.algebra.biases": BOTH,
    "mha_core.algebra.blocks": BOTH,
    "mha_core.algebra.grid": BOTH,
    "mha_core.algebra.masks": BOTH,
    "mha_core.algebra.norms": _pieces("numpy", ALGEBRA, "linear", "layer_norm", "rms_norm"),
    "mha_core.algebra.packed": BOTH,
    "mha_core.algebra.positions": _pieces("numpy", ALGEBRA, "rotary"),
    "mha_core.algebra.problem": BOTH,
    "mha_core.algebra.state": BY_ALGEBRA,
    "mha_core.algebra.structure": BOTH,
    "mha_core.algebra.visibility": BOTH,
    "mha_torch.functional": _pieces("torch", "functional", "linear", "layer_norm", "rms_norm", "gelu", "silu", "relu"),
    "mha_torch.layers": TORCH_LAYER,
    "mha_torch.sdpa": SDPA,
}

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "mha_core.algebra.attention": ("attention_weights", "grouped_sink"),
    "mha_core.algebra.biases": ("alibi", "relative_bias", "ArrayBias.check", "Alibi.check", "RelativeBias.check"),
    "mha_core.algebra.grid": ("Term", "check_aligned", "check_broadcast", "check_integers", "_key"),
    "mha_core.algebra.masks": ("Mask", "as_mask", "_size", "window", "chunks", "prefix", "key_lengths", "packed"),
    "mha_core.algebra.positions": ("sinusoidal_positions", "rotary_tables", "_table"),
    "mha_core.algebra.problem": ("scores_shape",),
    "mha_core.algebra.state": ("merge_states", "identity"),
    "mha_core.algebra.visibility": ("template",),
}
"""Functions, or classes, that check arguments or that no problem of the design calls: tests of other sections judge them."""


LEFT_OUT = {
    "mha_core.algebra.rounding": "bounds for verify, which no answer depends on",
    "mha_numpy.bfloat16": "the namespace, which test_namespace judges",
    "mha_numpy.blas": "the number of threads of the library, and speed",
    "mha_numpy.cores": "the number of threads",
    "mha_numpy.pool": "which thread computes what",
    "mha_numpy.threads": "which thread computes what",
    "mha_torch.compiled": "no kernel: how torch.compile records calls",
    "mha_torch.onednn": "a choice by speed: the kernel is the library's product",
    "mha_torch.second": "the error of second derivatives",
    "mha_torch.transforms": "no kernel",
    "mha_torch.varlen": "it needs a GPU",
}
"""Modules of the algebra, of NumPy and of torch that are not mutated, and why."""


def is_judged(module: str, function: str) -> bool:
    return not any(function == name or function.startswith(f"{name}.") for name in ELSEWHERE.get(module, ()))
