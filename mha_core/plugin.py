"""The names that plugin authors import.

>>> from mha_core.plugin import Backend, Kernel, Call, hookimpl
"""

from .algebra.biases import Alibi, ArrayBias
from .algebra.masks import Relation, runs
from .algebra.packed import by_sequence, goes_by_sequence, only_packed
from .algebra.problem import AttentionProblem
from .algebra.state import AttentionState, concat_queries, merge
from .dispatch.context import is_overridden
from .dispatch.contract import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Call, Kernel
from .dispatch.errors import NoDevice
from .dispatch.hookspecs import hookimpl
from .dispatch.registry import register, unregister
from .dispatch.step import Step

__all__ = [
    "ATTENTION_FEATURES",
    "STANDARD_LAYER_FEATURES",
    "Alibi",
    "ArrayBias",
    "AttentionProblem",
    "AttentionState",
    "Backend",
    "Call",
    "Kernel",
    "NoDevice",
    "Relation",
    "Step",
    "by_sequence",
    "concat_queries",
    "goes_by_sequence",
    "hookimpl",
    "is_overridden",
    "merge",
    "only_packed",
    "register",
    "runs",
    "unregister",
]
