"""The names that plugin authors import.

>>> from mha_core.plugin import Backend, Kernel, Call, hookimpl
"""

from .algebra.arrays import DynamicRange, sum_to, write_rows
from .algebra.attention import block_state
from .algebra.attention_vjp import AttentionGradients, block_gradients, gradients_by_sequence, row_terms, sink_gradient
from .algebra.bias_sums import ScoreSum, bias_by_distance, gradient_by_distance, score_sum
from .algebra.biases import Alibi, ArrayBias, Bias, BiasSum
from .algebra.blocks import by_batch_slices, visible_blocks
from .algebra.diagonals import keys_by_distance, place_of_pair, places_of_block, skewed
from .algebra.expressions import Mask
from .algebra.functions import BLOCK, MappedMask, codes_of
from .algebra.grid import Grid, Relation
from .algebra.int8 import map_rows
from .algebra.masks import runs
from .algebra.outline import Outline
from .algebra.packed import by_sequence, goes_by_sequence, only_packed
from .algebra.parts import Part
from .algebra.problem import AttentionProblem
from .algebra.spans import Span, spans
from .algebra.state import AttentionState, concat_queries, merge
from .algebra.structure import Structure
from .algebra.tiles import Limits, Tile, heads_together, pieces
from .dispatch.context import is_overridden
from .dispatch.contract import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Call, Collectives, Kernel
from .dispatch.errors import NoDevice
from .dispatch.hookspecs import hookimpl
from .dispatch.registry import register, unregister
from .ops.attend import attend
from .ops.attend_vjp import attend_vjp
from .ops.operation import Step
from .ops.tree import map_arrays

__all__ = [
    "ATTENTION_FEATURES",
    "STANDARD_LAYER_FEATURES",
    "BLOCK",
    "Alibi",
    "ArrayBias",
    "AttentionGradients",
    "AttentionProblem",
    "AttentionState",
    "Backend",
    "Bias",
    "BiasSum",
    "Call",
    "Collectives",
    "DynamicRange",
    "Grid",
    "Kernel",
    "Limits",
    "MappedMask",
    "Mask",
    "NoDevice",
    "Outline",
    "Part",
    "Relation",
    "ScoreSum",
    "Span",
    "Step",
    "Structure",
    "Tile",
    "attend",
    "attend_vjp",
    "bias_by_distance",
    "block_gradients",
    "block_state",
    "by_batch_slices",
    "by_sequence",
    "codes_of",
    "concat_queries",
    "goes_by_sequence",
    "gradient_by_distance",
    "gradients_by_sequence",
    "heads_together",
    "hookimpl",
    "is_overridden",
    "keys_by_distance",
    "map_arrays",
    "map_rows",
    "merge",
    "only_packed",
    "pieces",
    "place_of_pair",
    "places_of_block",
    "register",
    "row_terms",
    "runs",
    "score_sum",
    "sink_gradient",
    "skewed",
    "spans",
    "sum_to",
    "unregister",
    "visible_blocks",
    "write_rows",
]
