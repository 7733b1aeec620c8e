"""Pickled models: read again from where they came from, once in each process."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from .files import locate

_reading = threading.Lock()


def read_again(cls: Any, path_or_repo: str, backend: str, device: Any, dtype: Any) -> Any:
    """Return ``cls.from_pretrained`` of these; the process reads a model once, unless its file of weights changes."""
    weights = locate(path_or_repo) / "model.safetensors"
    with _reading:
        return _read_once(cls, path_or_repo, backend, device, dtype, weights.stat().st_mtime_ns if weights.exists() else None)


@lru_cache(maxsize=4)
def _read_once(cls: Any, path_or_repo: str, backend: str, device: Any, dtype: Any, changed: int | None) -> Any:
    return cls.from_pretrained(path_or_repo, backend=backend, device=device, dtype=dtype)
