"""The backend under test, and the ways in and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..algebra.arrays import device_of
from ..dispatch.backend import LoadedBackend, load
from ..dispatch.registry import registry
from ..dispatch.selection import backend_of, check_name
from ..ops import check

EVERY_DTYPE = ("test_random_problems_equal_the_oracle", "test_longer_problems_equal_the_oracle")
DTYPES = ("float32", "float64", "float16", "bfloat16")


class CannotJudge(Exception):
    """What was asked of the suite cannot be done: a device or a dtype that the backend does not have."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A backend on one device: NumPy arrays go in rounded, results come out checked.

    dtypes: the names of the floating dtypes that are judged. quick: fewer problems of each kind.
    """

    backend: LoadedBackend
    device: Any
    dtypes: tuple[str, ...]
    quick: bool = False
    seed: int = 0
    plugins: tuple[str, ...] = ()
    """Modules that were registered by hand, for a process of its own to register them too."""

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def xp(self) -> Any:
        return self.backend.xp

    @property
    def rounds_weights(self) -> bool:
        """Whether probabilities may be rounded to half precision: fused kernels do, the algebra does not."""
        return bool(registry().kernels.get((self.name, "attention")))

    @property
    def on_host(self) -> bool | None:
        """Whether its arrays live in the memory of the host, by what they say through DLPack; None where they say nothing."""
        ask = getattr(self.array(np.zeros(1)), "__dlpack_device__", None)
        return None if ask is None else int(ask()[0]) == 1  # kDLCPU

    def dtypes_in(self, module: str, test: str) -> tuple[str, ...]:
        """Those that a test judges: in a quick run all of them only for kernels and for random problems."""
        every = not self.quick or module == "test_kernels" or test in EVERY_DTYPE
        return self.dtypes if every else self.dtypes[:1]

    def count(self, full: int) -> int:
        """How many random problems to try: a tenth of them in a quick run."""
        return max(1, full // 10) if self.quick else full

    def array(self, x: Any, dtype: str | None = None) -> Any:
        """A NumPy array in the library, on the device; floating numbers rounded to ``dtype``, the first judged by default."""
        x = np.asarray(x)
        if x.dtype.kind != "f":
            return self.backend.from_numpy(x, self.device)
        dtype = self.dtypes[0] if dtype is None else dtype
        if dtype == "float64":
            return self.backend.from_numpy(x.astype(np.float64), self.device)
        return self.xp.astype(self.backend.from_numpy(x.astype(np.float32), self.device), getattr(self.xp, dtype))

    def numpy(self, x: Any) -> np.ndarray:
        """An array of the library in NumPy; half precision as float32, which holds it exactly."""
        if self.backend.is_floating(x.dtype) and dtype_name(x) in ("float16", "bfloat16"):
            x = self.xp.astype(x, self.xp.float32)
        return np.asarray(self.backend.to_numpy(x))

    def rounded(self, x: np.ndarray, dtype: str) -> np.ndarray:
        """float64 numbers as ``dtype`` holds them, read back from the library: what the oracle must be given."""
        return self.numpy(self.array(x, dtype)).astype(np.float64)

    def assert_like(self, result: Any, given: Any, *, dtype: Any = None) -> None:
        """Raise AssertionError where a result is of another library, dtype or device than what was given."""
        assert backend_of({"the result": result}) is self.backend, f"the result is a {type(result)}, not of {self.name}"
        expected = given.dtype if dtype is None else dtype
        assert result.dtype == expected, f"the result has dtype {result.dtype}; expected {expected}"
        assert device_of(result) == device_of(given), f"the result is on {device_of(result)}, the input on {device_of(given)}"


def dtype_name(x: Any) -> str:
    """``float32`` for torch.float32, numpy.float32 and their like."""
    return str(x.dtype).rpartition(".")[2]


def find(name: str, device: str | None, dtypes: list[str] | None, **settings: Any) -> Subject:
    """The backend of this name on this device. Raises MhaError, or CannotJudge, with what is wrong in one line."""
    backend = load(check_name(name))
    chosen = _device(backend, device)
    try:
        probe = backend.from_numpy(np.zeros(1, dtype=np.float32), chosen)
    except Exception as cause:  # whatever a library says of a device that is not there
        raise CannotJudge(f"device {device!r} of backend {name!r} cannot be used: {type(cause).__name__}: {cause}") from cause
    found = device_of(probe)
    if device is not None and found is not None and found != chosen and not str(found).startswith(device):
        raise CannotJudge(f"device {device!r} was asked for, but backend {name!r} put the array on {found}")
    for dtype in dtypes or ():
        if not _has(backend, dtype, chosen):
            raise CannotJudge(f"backend {name!r} has no floating dtype {dtype!r}; judged are {', '.join(DTYPES)}")
    known = tuple(dict.fromkeys(dtypes or [dtype for dtype in DTYPES if _has(backend, dtype, chosen)]))
    if not known:
        raise CannotJudge(f"backend {name!r} has none of the dtypes {', '.join(DTYPES)}: check its namespace and from_numpy")
    return Subject(backend, chosen, known, **settings)


def _device(backend: LoadedBackend, device: str | None) -> Any:
    """One of the devices that the backend names, or else what was written."""
    listed = list(backend.record.devices()) if device is not None and backend.record.devices else []
    return next((one for one in listed if str(one) == device), device)


def _has(backend: LoadedBackend, dtype: str, device: Any) -> bool:
    """Whether arrays of this dtype can be made: some libraries know the name, and give another dtype."""
    if dtype not in DTYPES:
        return False
    try:
        wanted = check.floating(backend, dtype)
        x = backend.from_numpy(np.zeros(1, dtype=np.float64 if dtype == "float64" else np.float32), device)
        return bool(x.dtype == wanted or (dtype != "float64" and backend.xp.astype(x, wanted).dtype == wanted))
    except Exception:  # a dtype that cannot be made is not there, whatever the library says of it
        return False


def unchanged(subject: Subject, arrays: Mapping[str, Any], before: Mapping[str, np.ndarray]) -> None:
    """Raise AssertionError, naming the argument, where an input holds other bits than before (promise 12)."""
    for name, x in arrays.items():
        assert subject.numpy(x).tobytes() == before[name].tobytes(), f"{name} was written to"
