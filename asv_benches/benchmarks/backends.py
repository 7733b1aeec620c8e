"""The installed backends.

asv imports this module to list the benchmarks, so it must not import an array library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import mha_core

if TYPE_CHECKING:
    from mha_core.dispatch.backend import LoadedBackend

KNOWN = ("numpy", "torch", "cupy")
"""Listed first, installed or not, because asv shows the history of listed parameters only."""

BACKENDS = [*KNOWN, *sorted({backend.name for backend in mha_core.backends()} - {*KNOWN})]


def ready(name: str) -> LoadedBackend:
    """Load a backend. Raises NotImplementedError, with which asv skips a benchmark, if the backend or its device is missing."""
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.errors import BackendUnavailable, UnknownBackend
    from mha_core.dispatch.selection import check_name

    commit, here = os.environ.get("ASV_COMMIT", ""), Path(mha_core.__file__).parents[1].name
    if commit and os.environ.get("ASV_ENV_TYPE") == "installed" and here != commit:
        raise ImportError(f"mha_core is imported from {here}; expected that of commit {commit}")
    try:
        return load(check_name(name))
    except (UnknownBackend, BackendUnavailable) as error:
        raise NotImplementedError(str(error)) from error


@contextmanager
def skip_missing() -> Iterator[None]:
    """Skip a benchmark, instead of failing, if this mha_core does not yet have a name that it uses."""
    try:
        yield
    except AttributeError as error:
        if error.obj is not mha_core:
            raise
        raise NotImplementedError(f"this mha_core has no {error.name}") from error
