"""Threads, tasks and rows of the NumPy kernels, for other distributions that compute with NumPy arrays.

``check(version)`` is called when such a distribution is loaded. ``VERSION`` changes when a name here changes its meaning.
"""

from mha_core.dispatch.errors import PluginApiMismatch

from .activations import activate
from .gelu import supports as supports_gelu
from .interrupts import Shield, shielded
from .layers import Chunks, Workers
from .layers import supports as supports_layers
from .norms import by_rows
from .norms import supports as supports_norms
from .pool import threads_here
from .scratch import scratch_kept_in
from .tasks import in_tiles

__all__ = [
    "VERSION",
    "Chunks",
    "Shield",
    "Workers",
    "activate",
    "by_rows",
    "check",
    "in_tiles",
    "scratch_kept_in",
    "shielded",
    "supports_gelu",
    "supports_layers",
    "supports_norms",
    "threads_here",
]

VERSION = 1


def check(version: int, distribution: str) -> None:
    """Raise PluginApiMismatch unless a distribution was written for this version of the module."""
    if version != VERSION:
        raise PluginApiMismatch(
            f"{distribution} was written for version {version} of mha_numpy.shared, and this mha-core has version {VERSION}: "
            f"install a {distribution} of the same release as mha-core"
        )
