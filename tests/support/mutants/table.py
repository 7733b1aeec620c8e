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
TILE_GRADIENTS = (Judged("numpy", "attention_vjp", "tiles"),)
BY_ALGEBRA = (Judged("numpy", "attention", ALGEBRA),)
GRADIENTS_BY_ALGEBRA = (Judged("numpy", "attention_vjp", ALGEBRA),)
BOTH = BY_ALGEBRA + TILES
LAYERS = (Judged("numpy", "encoder_layer", "chunks"), Judged("numpy", "feed_forward", "chunks"))
SDPA = (Judged("torch", "attention", "sdpa"),)
SDPA_VJP = (Judged("torch", "attention_vjp", "sdpa"),)
BLOCKS_VJP = (Judged("torch", "attention_vjp", "blocks"),)
TORCH_LAYER = (Judged("torch", "encoder_layer", "functional"), Judged("torch", "feed_forward", "inplace"))


def _pieces(backend: str, kernel: str, *ops: str) -> tuple[Judged, ...]:
    return tuple(Judged(backend, op, kernel) for op in ops)


TABLE: dict[str, tuple[Judged, ...]] = {
    "mha_numpy.gelu": _pieces("numpy", "tiles", "gelu", "gelu_vjp"),
    "mha_numpy.relu": _pieces("numpy", "tiles", "relu", "relu_vjp"),
    "mha_numpy.rotary": _pieces("numpy", "tiles", "rotary", "rotary_vjp"),
    "mha_numpy.embedding": _pieces("numpy", "sorted", "embedding_vjp"),
    "mha_numpy.norms": _pieces("numpy", "chunks", "layer_norm", "rms_norm"),
    "mha_numpy.norm_gradients": _pieces("numpy", "chunks", "layer_norm_vjp", "rms_norm_vjp"),
    "mha_numpy.linear": (*_pieces("numpy", "chunks", "linear", "linear_vjp"), *_pieces("numpy", "half", "linear")),
    "mha_numpy.activations": LAYERS[::-1],
    "mha_numpy.layers": LAYERS,
    "mha_numpy.layer_gradients": _pieces("numpy", "chunks", "encoder_layer_vjp", "feed_forward_vjp"),
    "mha_numpy.updates": _pieces("numpy", "chunks", "adamw"),
    "mha_numpy.scratch": (*TILES, *LAYERS[:1]),
    **{
        f"mha_numpy.attention.{module}": judged
        for judged, modules in (
            (TILES, ("exponential", "few_pairs", "kernel", "tiles")),
            (TILES + TILE_GRADIENTS, ("masks_and_biases", "score_functions", "split", "subproblem", "tile_masks")),
            (TILE_GRADIENTS, ("bias_gradients", "gradient_sums", "gradient_tiles", "gradients")),
        )
        for module in modules
    },
    "mha_core.algebra.activations": _pieces("numpy", ALGEBRA, "gelu", "relu", "silu", "gelu_vjp", "relu_vjp", "silu_vjp"),
    "mha_core.algebra.arrays": BOTH + GRADIENTS_BY_ALGEBRA,
    "mha_core.algebra.attention_vjp": GRADIENTS_BY_ALGEBRA,
    "mha_core.algebra.bias_sums": BLOCKS_VJP,
    "mha_core.algebra.block_sum": GRADIENTS_BY_ALGEBRA,
    "mha_core.algebra.diagonals": (*GRADIENTS_BY_ALGEBRA, *BLOCKS_VJP),
    "mha_core.algebra.dropout": (*BY_ALGEBRA, *GRADIENTS_BY_ALGEBRA),
    "mha_core.algebra.scatter": _pieces("numpy", ALGEBRA, "embedding_vjp"),
    "mha_core.algebra.attention": (*BY_ALGEBRA, *_pieces("numpy", ALGEBRA, "attention_weights")),
    "mha_core.algebra.biases": BOTH + GRADIENTS_BY_ALGEBRA,
    **{f"mha_core.algebra.{module}": BOTH for module in ("blocks", "expressions", "functions", "grid", "masks", "spans")},
    "mha_core.algebra.norms": _pieces(
        *("numpy", ALGEBRA), *("linear", "layer_norm", "rms_norm", "linear_vjp", "layer_norm_vjp", "rms_norm_vjp")
    ),
    "mha_core.algebra.packed": BOTH,
    "mha_core.algebra.int8": _pieces("numpy", ALGEBRA, "linear_int8"),
    "mha_core.algebra.positions": _pieces("numpy", ALGEBRA, "rotary", "rotary_vjp"),
    "mha_core.algebra.independence": BY_ALGEBRA,
    "mha_core.algebra.losses": _pieces("numpy", ALGEBRA, "cross_entropy"),
    "mha_core.algebra.problem": BOTH,
    "mha_core.algebra.state": BY_ALGEBRA,
    "mha_core.algebra.structure": BOTH,
    "mha_core.algebra.tiles": TILES,
    "mha_core.algebra.updates": _pieces("numpy", ALGEBRA, "adamw"),
    "mha_core.algebra.visibility": BOTH + GRADIENTS_BY_ALGEBRA,
    "mha_torch.activations": (
        *_pieces("torch", "chunks", "gelu"),
        *_pieces("torch", "fused", "gelu_vjp", "silu_vjp", "relu_vjp"),
    ),
    "mha_torch.blocks_vjp": BLOCKS_VJP,
    "mha_torch.functional": _pieces("torch", "functional", "linear", "layer_norm", "rms_norm", "gelu", "silu", "relu"),
    "mha_torch.gradients": _pieces("torch", "fused", "layer_norm_vjp", "embedding_vjp"),
    "mha_torch.layers": TORCH_LAYER,
    "mha_torch.onednn": (*_pieces("torch", "onednn", "linear", "linear_vjp"), *BLOCKS_VJP, *TORCH_LAYER),
    "mha_torch.parts": (*SDPA_VJP, *BLOCKS_VJP),
    "mha_torch.rotary": _pieces("torch", "inplace", "rotary"),
    "mha_torch.rows": (*SDPA_VJP, *BLOCKS_VJP),
    "mha_torch.sdpa": SDPA,
    "mha_torch.sdpa_vjp": SDPA_VJP,
    "mha_torch.shapes": (*SDPA, *SDPA_VJP),
    "mha_torch.tiles": (Judged("torch", "attention", "tiles"),),
    "mha_torch.updates": _pieces("torch", "fused", "adamw"),
}

_ELSEWHERE = {
    "biases": """alibi relative_bias ArrayBias.check Alibi.check RelativeBias.check
        Bias.part ArrayBias.part RelativeBias.part""",
    "dropout": "weight_dropout checked_rate checked_seed kept_elements named_seed _mix mixed _PartOfDropout",
    "scatter": "placed _spread",
    "grid": "Term check_aligned check_broadcast check_integers _key",
    "expressions": "Mask PartOfMask as_mask And.part Or.part Not.part ArrayMask.part",
    "masks": """_size window chunks prefix key_lengths packed
        Band.part Chunks.part KeyLengths.part Segments.part Packed.part""",
    "positions": "sinusoidal_positions rotary_tables _table",
    "problem": "scores_shape",
    "state": "merge_states identity",
    "updates": "sgd clip_scale _square_norm",
}
_ON_GPUS = {"mha_torch.gradients": ("_sorted_sums",), "mha_torch.shapes": ("recorded_with_mask", "with_whole_rows")}
ELSEWHERE = {f"mha_core.algebra.{module}": tuple(names.split()) for module, names in _ELSEWHERE.items()} | _ON_GPUS
"""Functions, or classes, that check arguments or that no problem of the design calls: tests of other sections judge them."""


LEFT_OUT = {
    "mha_core.algebra.rounding": "bounds for verify, which no answer depends on",
    "mha_core.algebra.outline": "no kernel: the arrays of a record, by which kernels for JAX are compiled",
    "mha_core.algebra.parts": "no kernel: parts of a problem for many processes, which test_parts judges",
    "mha_numpy.bfloat16": "the namespace, which test_namespace judges",
    "mha_numpy.blas": "the number of threads of the library, and speed",
    "mha_numpy.cores": "the number of threads",
    "mha_numpy.interrupts": "when Ctrl-C is raised, which test_interrupts judges",
    "mha_numpy.pool": "which thread computes what",
    "mha_numpy.shared": "names for other distributions",
    "mha_numpy.tasks": "which thread computes what",
    "mha_numpy.threads": "which thread computes what",
    "mha_numpy.version": "whether an array was written to, which test_tape judges",
    "mha_torch.compiled": "no kernel: how torch.compile records calls",
    "mha_torch.namespace": "one function, for GPUs",
    "mha_torch.recompute": "records attention for the autograd of torch; other modules compute the numbers",
    "mha_torch.ranks": "processes send tensors, which test_distributed_torch judges",
    "mha_torch.second": "the error of second derivatives",
    "mha_torch.tensors": "how torch records gradients",
    "mha_torch.threads": "which thread computes what",
    "mha_torch.transforms": "no kernel",
    "mha_torch.varlen": "it needs a GPU",
}
"""Modules of the algebra, of NumPy and of torch that are not mutated, and why."""


def is_judged(module: str, function: str) -> bool:
    return not any(function == name or function.startswith(f"{name}.") for name in ELSEWHERE.get(module, ()))
