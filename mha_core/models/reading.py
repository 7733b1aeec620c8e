"""Pickled models: read again from where they came from, once in each process."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from .files import locate

_reading = threading.Lock()


def read_again(cls: Any, path_or_repo: str, backend: str, device: Any, dtype: Any) -> Any:
    """Return ``cls.from_pretrained`` of these; the process reads a model once, unless its files change."""
    folder = locate(path_or_repo)
    files = sorted(
        path for kind in ("safetensors", "json", "jinja") for at in (".", "*") for path in folder.glob(f"{at}/*.{kind}")
    )
    with _reading:
        return _read_once(cls, path_or_repo, backend, device, dtype, tuple(path.stat().st_mtime_ns for path in files))


@lru_cache(maxsize=4)
def _read_once(cls: Any, path_or_repo: str, backend: str, device: Any, dtype: Any, changed: tuple[int, ...]) -> Any:
    return cls.from_pretrained(path_or_repo, backend=backend, device=device, dtype=dtype)
