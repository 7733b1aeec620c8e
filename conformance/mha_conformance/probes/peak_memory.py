"""Peak memory of this process, and how to reset it."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak() -> int:
    """Return the peak resident memory in bytes. On Linux, getrusage would count what the parent held before exec."""
    if _STATUS.exists():
        return _status("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def trim() -> None:
    """Return freed memory to the system, where the C library can (glibc): memory that it reuses would not raise the peak."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if release is not None:
        release(0)


def reset_peak() -> bool:
    """Reset the peak to the memory that the process takes now. Return False if the system cannot."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True
