"""The backend under test, and how arrays enter and leave it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mha_core.shared import LoadedBackend, backend_of, device_of, dtype_name, registry

from .oracle.tolerance import Exact, exact_attention

EVERY_DTYPE = ("test_namespace", "test_kernels", "test_each_option_alone", "test_options_together")
"""Modules, and tests of others, that judge every dtype in a quick run too."""
DTYPES = ("float32", "float64", "float16", "bfloat16")


class CannotJudge(Exception):
    """The suite cannot do what was asked: the backend lacks the device or the dtype, or no report can be written."""


@dataclass(eq=False)
class BackendUnderTest:
    """A backend on one device, with the settings of the run. NumPy arrays enter rounded; results are checked on the way out."""

    loaded: LoadedBackend
    device: Any
    dtypes: tuple[str, ...]
    """Names of the floating dtypes that are judged."""
    quick: bool = False
    """True to try fewer problems of each kind."""
    part: float = 1.0
    """The part of the problems of each covering design that is judged."""
    seed: int = 0
    plugins: tuple[str, ...] = ()
    """Modules that were registered by hand; a new process must register them too."""

    @property
    def dtype(self) -> str:
        """The first dtype that is judged, in which arrays are made unless told otherwise."""
        return self.dtypes[0]

    @property
    def name(self) -> str:
        return self.loaded.name

    @property
    def xp(self) -> Any:
        return self.loaded.xp

    @property
    def rounds_weights(self) -> bool:
        """True if probabilities may be rounded to half precision: fused kernels do, the algebra does not."""
        return bool(registry().kernels.get((self.name, "attention")))

    @cached_property
    def writes(self) -> bool:
        """True if numbers can be written into an array; some libraries' arrays never change."""
        x = self.array(np.zeros(1))
        try:
            x[...] = x
        except (TypeError, RuntimeError):
            return False
        return True

    @cached_property
    def has_views(self) -> bool:
        """False if a part of an array is a copy, and its transpose too; True if the library does not tell."""
        x = self.array(np.zeros((4, 4)), "float32")
        try:
            whole, *parts = map(np.from_dlpack, (x, x[::2, 1:], self.xp.matrix_transpose(x)))
        except Exception:  # its memory is on a device, or it exports no view: then it has views as far as we know
            return True
        return any(np.shares_memory(whole, part) for part in parts)

    @cached_property
    def on_host(self) -> bool | str:
        """True if its arrays live in host memory, according to DLPack; a text that says why if they do not tell."""
        ask = getattr(self.array(np.zeros(1)), "__dlpack_device__", None)
        if ask is None:
            return "its arrays have no __dlpack_device__"
        try:
            return int(ask()[0]) == 1  # kDLCPU
        except Exception as error:  # arrays that are not computed yet have no memory
            return f"__dlpack_device__ of its arrays raises {type(error).__name__}: {error}"

    def dtypes_in(self, module: str, test: str) -> tuple[str, ...]:
        """Return the dtypes that a test judges: all; in a quick run, only the first, except in what EVERY_DTYPE names."""
        every = not self.quick or module in EVERY_DTYPE or test in EVERY_DTYPE
        return self.dtypes if every else self.dtypes[:1]

    def count(self, full: int) -> int:
        """Return how many random problems to try: ``part`` of ``full``, or of a tenth of it in a quick run."""
        return math.ceil(self.part * (full // 10 if self.quick else full)) or 1

    def array(self, x: Any, dtype: str | None = None) -> Any:
        """Make an array of the library on the device. Floating numbers are rounded to ``dtype``, by default the first one."""
        made = self._made(np.asarray(x), dtype)
        if self.loaded.record.thread_bound:
            self.numpy(made)
        return made

    def _made(self, x: np.ndarray, dtype: str | None) -> Any:
        if x.dtype.kind != "f":
            return self.loaded.from_numpy(x, self.device)
        dtype = dtype or self.dtype
        if dtype == "float64":
            return self.loaded.from_numpy(x.astype(np.float64), self.device)
        return self.xp.astype(self.loaded.from_numpy(x.astype(np.float32), self.device), getattr(self.xp, dtype))

    def numpy(self, x: Any) -> np.ndarray:
        """Convert an array of the library to NumPy; half precision becomes float32, which is exact."""
        if dtype_name(x.dtype) in ("float16", "bfloat16"):
            x = self.xp.astype(x, self.xp.float32)
        return np.asarray(self.loaded.to_numpy(x))

    def bits(self, result: Any) -> bytes:
        """Return the bytes of an array, or of a tuple or a dict of arrays."""
        arrays = result if isinstance(result, tuple) else result.values() if isinstance(result, dict) else (result,)
        return b"".join(self.numpy(x).tobytes() for x in arrays)

    def rounded(self, x: np.ndarray, dtype: str | None = None) -> np.ndarray:
        """Round float64 numbers to ``dtype`` and read them back from the library, for the oracle to use."""
        return self.numpy(self.array(x, dtype)).astype(np.float64)

    def exact_attention(self, *arrays: Any, dtype: str | None = None, **options: Any) -> Exact:
        """Return the oracle's answer, with the bounds of this backend's kernels."""
        return exact_attention(*arrays, dtype=dtype or self.dtype, rounds_weights=self.rounds_weights, **options)

    def assert_like(self, result: Any, given: Any, *, dtype: Any = None) -> None:
        """Raise AssertionError if a result has another library, dtype or device than the input."""
        assert backend_of({"the result": result}) is self.loaded, f"the result is a {type(result)}, not an array of {self.name}"
        expected = given.dtype if dtype is None else dtype
        assert result.dtype == expected, f"the result has dtype {result.dtype}; expected {expected}"
        assert device_of(result) == device_of(given), f"the result is on {device_of(result)}, the input on {device_of(given)}"

    @contextmanager
    def unchanged(self, arrays: Mapping[str, Any]) -> Iterator[None]:
        """Raise AssertionError, naming the argument, if an input no longer has the same bits at the end (promise 12)."""
        before = {name: self.numpy(x).tobytes() for name, x in arrays.items()}
        yield
        for name, x in arrays.items():
            assert self.numpy(x).tobytes() == before[name], f"{name} was written to"
