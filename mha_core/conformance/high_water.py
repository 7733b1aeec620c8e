"""The greatest amount of memory that this process held, and how to start it anew."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak() -> int:
    """The greatest that the process held; getrusage would count, on Linux, what its parent held before exec."""
    if _STATUS.exists():
        return _status("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def trim() -> None:
    """Give back what the C library keeps of freed memory, where it can (glibc): what is taken again would not be seen."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if release is not None:
        release(0)


def set_back() -> bool:
    """Make the peak what the process holds now; False where the system has no way."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True
