"""Find the backend under test, and name what would make every test fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_core.shared import LoadedBackend, check, check_name, device_of, find_backend, load

from .backend import DTYPES, BackendUnderTest, CannotJudge

NEEDED = """
abs all any arange argmax argsort asarray astype bitwise_and bitwise_right_shift bitwise_xor bool broadcast_to clip concat exp
finfo flip float32 floor full iinfo int16 int64 int8 isdtype isfinite isnan log matmul matrix_transpose max maximum mean
min minimum ones ones_like permute_dims reshape round searchsorted sqrt stack sum take take_along_axis tanh uint32 uint8 where
zeros zeros_like
"""
"""The names of the namespace that mha_core uses."""
LIMITS = {"finfo": ("float32", ("bits", "eps", "smallest_normal")), "iinfo": ("int64", ("bits",))}
"""The functions that return the limits of a dtype: a dtype, and the limits that mha_core uses."""


def find(name: str, device: str | None, dtypes: list[str] | None, **settings: Any) -> BackendUnderTest:
    """Load the backend of this name on this device. Raises MhaError or CannotJudge, with a one-line message."""
    loaded = load(check_name(name))
    missing = [*_missing(loaded.xp)]
    if missing:
        named = getattr(loaded.xp, "__name__", type(loaded.xp).__name__)
        of = len(NEEDED.split()) + sum(len(names) for _, names in LIMITS.values())
        raise CannotJudge(
            f"the namespace of backend {name!r}, {named}, has {of - len(missing)} of {of} names that attention needs; "
            f"add {', '.join(missing)}"
        )
    chosen = _device(loaded, device)
    probe = _array(loaded, device, chosen)
    actual = device_of(probe)
    if device is not None and actual is not None and actual != chosen and not str(actual).startswith(device):
        raise CannotJudge(f"device {device!r} was requested, but backend {name!r} put the array on {actual}")
    for dtype in dtypes or ():
        if not _has(loaded, dtype, chosen):
            raise CannotJudge(f"backend {name!r} has no floating dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    known = tuple(dict.fromkeys(dtypes or [dtype for dtype in DTYPES if _has(loaded, dtype, chosen)]))
    if not known:
        raise CannotJudge(f"backend {name!r} has none of the dtypes {', '.join(DTYPES)}: check its namespace and from_numpy")
    return BackendUnderTest(loaded, chosen, known, **settings)


def _missing(xp: Any) -> Iterator[str]:
    """Yield what a namespace lacks: names, and limits of dtypes."""
    yield from (each for each in NEEDED.split() if not hasattr(xp, each))
    for function, (dtype, names) in LIMITS.items():
        try:
            limits = getattr(xp, function)(getattr(xp, dtype)) if hasattr(xp, function) and hasattr(xp, dtype) else None
        except Exception as error:  # whatever the library raises
            raise CannotJudge(
                f"{function}({dtype}) of the namespace raises {type(error).__name__}: {error}; mend it"
            ) from error
        yield from (f"{function}({dtype}).{name}" for name in names if not hasattr(limits, name))


def _array(loaded: LoadedBackend, device: str | None, chosen: Any) -> Any:
    """Return an array of the backend that came from NumPy and can go back. Raises CannotJudge if this is not so."""
    given = np.asarray([1.5], dtype=np.float32)
    try:
        x = loaded.from_numpy(given, chosen)
    except Exception as cause:  # libraries raise whatever they like, for example for a device that does not exist
        what = f"device {device!r} of backend {loaded.name!r} cannot be used"
        advice = "" if device else "; the field from_numpy of its Backend can say how"
        if loaded.record.from_numpy and not device:
            advice = "; its from_numpy is called with a NumPy array and a device, which is None for the default one"
        what = what if device else f"backend {loaded.name!r} cannot convert an array from NumPy"
        raise CannotJudge(f"{what}: {type(cause).__name__}: {cause}{advice}") from cause
    kind = f"{type(x).__module__}:{type(x).__qualname__}"
    owner = find_backend(x)
    if owner is not loaded:
        if owner is not None:
            raise CannotJudge(
                f"from_numpy of backend {loaded.name!r} returns {kind}, an array of backend {owner.name!r}: convert it to yours"
            )
        types = ", ".join(map(repr, loaded.record.types))
        named = f"types of backend {loaded.name!r} is ({types},), but its arrays are {kind}"
        raise CannotJudge(f"{named}, which belong to no backend: write types=({kind!r},)")
    try:
        back = np.asarray(loaded.to_numpy(x))
    except Exception as cause:
        raise CannotJudge(
            f"backend {loaded.name!r} cannot convert an array to NumPy: {type(cause).__name__}: {cause}; "
            "the field to_numpy of its Backend can say how"
        ) from cause
    if back.dtype != given.dtype or back.shape != given.shape or (back != given).any():
        raise CannotJudge(f"backend {loaded.name!r} converts {given!r} to its library, and returns {back!r} from there")
    return x


def _device(loaded: LoadedBackend, device: str | None) -> Any:
    """Return the device that the backend lists under this name, else the name itself."""
    listed = list(loaded.record.devices()) if device is not None and loaded.record.devices else []
    return next((one for one in listed if str(one) == device), device)


def _has(loaded: LoadedBackend, dtype: str, device: Any) -> bool:
    """Return whether arrays of this dtype can be made: some libraries accept the name and return another dtype."""
    if dtype not in DTYPES:
        return False
    try:
        wanted = check.floating(loaded, dtype)
        x = loaded.from_numpy(np.zeros(1, dtype=np.float64 if dtype == "float64" else np.float32), device)
        return bool(x.dtype == wanted or (dtype != "float64" and loaded.xp.astype(x, wanted).dtype == wanted))
    except Exception:  # whatever the library raises, the dtype cannot be made
        return False
