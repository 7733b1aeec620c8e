"""The installed backends, from metadata alone: asv imports this to list benchmarks, and no array library need be there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mha_core.dispatch.backend import LoadedBackend

KNOWN = ("numpy", "torch", "cupy")
"""Always listed, and first: asv shows the history of listed parameters only."""

BACKENDS = [*KNOWN, *sorted({entry.name for entry in entry_points(group="mha_core.plugins")} - {*KNOWN})]


def ready(name: str) -> LoadedBackend:
    """Raises NotImplementedError, by which asv leaves a benchmark out, where the backend or its device is missing."""
    import mha_core
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.errors import BackendUnavailable, UnknownBackend
    from mha_core.dispatch.selection import check_name

    commit, here = os.environ.get("ASV_COMMIT", ""), Path(mha_core.__file__).parents[1].name
    if commit and os.environ.get("ASV_ENV_TYPE") == "installed" and here != commit:
        raise ImportError(f"mha_core of {here} is imported where that of {commit} is to be measured")
    try:
        return load(check_name(name))
    except (UnknownBackend, BackendUnavailable) as error:
        raise NotImplementedError(str(error)) from error


@contextmanager
def skip_missing() -> Iterator[None]:
    """What an older mha_core had not yet is left out; it has not failed."""
    import mha_core

    try:
        yield
    except AttributeError as error:
        if error.obj is not mha_core:
            raise
        raise NotImplementedError(f"this mha_core has no {error.name}") from error
