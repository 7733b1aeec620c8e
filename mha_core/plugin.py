"""All that the author of a plugin imports.

>>> from mha_core.plugin import Backend, Kernel, Call, hookimpl
"""

from .algebra.problem import AttentionProblem
from .algebra.state import AttentionState
from .dispatch.contract import Backend, Call, Kernel
from .dispatch.errors import NoDevice
from .dispatch.hookspecs import hookimpl
from .dispatch.registry import register, unregister

__all__ = ["AttentionProblem", "AttentionState", "Backend", "Call", "Kernel", "NoDevice", "hookimpl", "register", "unregister"]
