"""The backend of a call without arrays, and the reason for it.

It is the first of these that is given: the ``backend=`` argument, the innermost ``use_backend``, ``set_default_backend``,
``MHA_BACKEND``, and finally ``numpy``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .backend import LoadedBackend, load
from .context import demands
from .selection import backend_of, check_name, type_name

_default: str | None = None


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and why it computes."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def set_default_backend(name: str | None) -> None:
    """Set the backend of calls without arrays for the whole process; None restores MHA_BACKEND, then numpy."""
    global _default
    if name is not None:
        load(check_name(name))
    _default = name


def default_backend(*arrays: Any) -> BackendChoice:
    """Return the backend that would compute now, and why: a record with ``name`` and ``reason``.

    With arrays, these decide. Without, the innermost ``use_backend`` does, then ``set_default_backend``, then the environment
    variable MHA_BACKEND, then the default, numpy. The library is not imported for that, and may be missing.

    Raises UnknownBackend if MHA_BACKEND names none; TypeError for what is not an array; BackendMismatch for arrays of several
    libraries, and for arrays of another one than ``use_backend`` demands.

    >>> import numpy as np, mha_core as mha
    >>> with mha.use_backend("numpy"):
    ...     print(mha.default_backend())
    numpy: use_backend('numpy') is in force
    >>> mha.default_backend(np.ones(3))
    BackendChoice(name='numpy', reason='the arrays decide (numpy.ndarray)')
    """
    if arrays:
        named = {f"arrays[{at}]": x for at, x in enumerate(arrays)}
        kinds = dict.fromkeys(map(type_name, arrays))
        return BackendChoice(backend_of(named).name, f"the arrays decide ({', '.join(kinds)})")
    choice = _chosen()
    check_name(choice.name, f"{choice.reason}: ")
    return choice


def _chosen() -> BackendChoice:
    demanded, variable = demands.get().backend, os.environ.get("MHA_BACKEND")
    if demanded is not None:
        return BackendChoice(demanded, f"use_backend({demanded!r}) is in force")
    if _default is not None:
        return BackendChoice(_default, f"set_default_backend({_default!r}) was called")
    if variable:
        return BackendChoice(variable, f"MHA_BACKEND is {variable!r}")
    return BackendChoice("numpy", "the default, since nothing else is set")


def backend_without_arrays(name: str | None = None, device: Any = None) -> LoadedBackend:
    """Return the backend of a call without arrays. Raises UnknownDevice if it lacks one that is given."""
    blame = ""
    if name is None:
        choice = _chosen()
        name, blame = choice.name, f"{choice.reason}: "  # no argument names it
    backend = load(check_name(name, blame), blame)
    backend.check_device(device)
    return backend
