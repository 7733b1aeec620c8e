"""The row of a plugin in the tables of wrong plugins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HANDLES = frozenset(
    {
        *("lse", "softcap", "sink", "grouped_query", "value_dim", "broadcast", "bias", "alibi", "relative_bias", "bias_term"),
        *("causal", "window", "key_lengths", "packed", "array_mask", "mask"),
    }
)
"""The features that the attention kernels of this folder declare: all, but for those of functions."""
FUNCTIONS = frozenset({"mask_function", "score_function"})

STATES = frozenset({"gradient", "forward_gradient", "vmap"})


@dataclass(frozen=True)
class Plugin:
    """A kernel or a backend with one fault, or with none."""

    name: str
    """Name of its function in ``module``."""
    module: str
    fault: str
    section: str
    """The module of the suite that must find the fault, or several."""
    promise: int | None
    """A failed test must be marked with this promise; None if the fault breaks none of them."""
    select: str = ""
    """Expression of pytest's ``-k`` that selects tests of the section."""
    backend: str = "numpy"
    """The backend that is judged."""
    op: str = "attention"
    handles: frozenset[str] = HANDLES
    dtype: str = "float32"
    registered: str = "wrong_plugins"
    """The module that ``--plugin`` names."""
    kernel: Mapping[str, Any] = field(default_factory=lambda: {"priority": 9})
    """Further fields of the kernel's record."""
    says: str = ""
    """Words that a failure, or the reason of a skip, must contain."""

    @property
    def id(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_right(self) -> bool:
        return self.fault == "none"


def plugins(blocks, **settings):
    """Return plugins from rows of (name, promise, select, fault[, settings of this plugin]), by "module section".

    ``settings``: of all plugins of a module.
    """
    return [
        Plugin(
            name,
            module,
            fault,
            **{"section": section, **settings.get(module, {}), **dict(*own)},
            promise=promise,
            select=select,
        )
        for module, section, rows in ((*block.split(), rows) for block, rows in blocks.items())
        for name, promise, select, fault, *own in rows
    ]
