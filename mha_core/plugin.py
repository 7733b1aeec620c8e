"""The names that plugin authors import.

>>> from mha_core.plugin import Backend, Kernel, Call, hookimpl
"""

from .algebra.arrays import DynamicRange, sum_to
from .algebra.attention import block_state
from .algebra.attention_vjp import AttentionGradients, block_gradients, gradients_by_sequence, row_terms, sink_gradient
from .algebra.biases import Alibi, ArrayBias, BiasSum
from .algebra.blocks import by_batch_slices
from .algebra.grid import Grid
from .algebra.masks import Mask, Relation, runs
from .algebra.packed import by_sequence, goes_by_sequence, only_packed
from .algebra.parts import Part
from .algebra.problem import AttentionProblem
from .algebra.state import AttentionState, concat_queries, merge
from .dispatch.context import is_overridden
from .dispatch.contract import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Call, Collectives, Kernel
from .dispatch.errors import NoDevice
from .dispatch.hookspecs import hookimpl
from .dispatch.problems import attend, attend_vjp
from .dispatch.registry import register, unregister
from .dispatch.step import Step
from .ops.tree import map_arrays

__all__ = [
    "ATTENTION_FEATURES",
    "STANDARD_LAYER_FEATURES",
    "Alibi",
    "ArrayBias",
    "AttentionGradients",
    "AttentionProblem",
    "AttentionState",
    "Backend",
    "BiasSum",
    "Call",
    "Collectives",
    "DynamicRange",
    "Grid",
    "Kernel",
    "Mask",
    "NoDevice",
    "Part",
    "Relation",
    "Step",
    "attend",
    "attend_vjp",
    "block_gradients",
    "block_state",
    "by_batch_slices",
    "by_sequence",
    "concat_queries",
    "goes_by_sequence",
    "gradients_by_sequence",
    "hookimpl",
    "is_overridden",
    "map_arrays",
    "merge",
    "only_packed",
    "register",
    "row_terms",
    "runs",
    "sink_gradient",
    "sum_to",
    "unregister",
]
