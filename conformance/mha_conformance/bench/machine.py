"""Processor and library versions of a measurement, without host name or paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
KERNELS = ("OPENBLAS_", "MKL_", "OMP_", "KMP_", "DNNL_", "ONEDNN_", "NPY_", "VECLIB_")
NUMBERS = {"family": "cpu family", "number": "model", "stepping": "stepping"}
NO_CODE = [f":(exclude)*.{kind}" for kind in ("md", "svg", "png", "json")]
"""Patterns of git for files that measuring writes."""
LIBRARIES = ("mha-core", "numpy", "torch", "sentence-transformers", "transformers")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> dict[str, object]:
    """Return what tells this processor from others: its names and numbers, cores, caches, and which of FLAGS it has.

    A virtual machine may give one model name to several generations of a processor; family, model and stepping are numbers of
    the processor itself.
    """
    cpu = _cpuinfo()
    numbers = {name: int(cpu[word]) for name, word in NUMBERS.items() if cpu.get(word, "").isdigit()}
    return {
        "model": cpu.get("model name") or platform.processor() or "unknown",
        **numbers,
        "caches": _caches(),
        "cores": cores(),
        "flags": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "system": f"{platform.system()} {platform.machine()}",
    }


def described(processor: Mapping[str, Any]) -> str:
    """Return a processor in words."""
    named = {"family": "family", "number": "model", "stepping": "stepping"}
    numbers = [f"{name} {processor[key]}" for key, name in named.items() if key in processor]
    caches = ", ".join(f"{name} {size}" for name, size in processor.get("caches", {}).items())
    cores = f"{processor['cores']} cores" if "cores" in processor else ""
    words = processor.get("model"), " ".join(numbers), cores, " ".join(processor.get("flags", ())), caches
    return ", ".join(filter(None, (*words, processor.get("system"))))


def stem(processor: Mapping[str, Any]) -> str:
    """Return the name of a file about a processor: its model, family and number, in small letters."""
    words = [str(processor[key]) for key in ("model", "family", "number") if key in processor]
    return re.sub("[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


def listed(versions: Mapping[str, str]) -> str:
    """Return names and versions in words."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _caches() -> dict[str, str]:
    """Return the sizes of the first core's caches by level and type, such as ``{"L1 data": "32K"}``."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_line(folder / name) for name in ("level", "type", "size"))
        if level and size:
            sizes[f"L{level} {kind.lower()}" if kind != "Unified" else f"L{level}"] = size
    return sizes


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def busy(seconds: float = 0.3) -> float:
    """Return the share of the cores that processes use now, while this one waits; 0 on a system that does not say."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0.0
    before = _processor_times(path)
    time.sleep(seconds)
    used, idle = (after - earlier for after, earlier in zip(_processor_times(path), before, strict=True))
    return used / max(1, used + idle)


def _processor_times(path: Path) -> tuple[int, int]:
    """Return the time that all cores were used, and idle, since the system started."""
    times = [int(word) for word in path.read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    idle = sum(times[3:5])  # idle, and idle while something waits for a disk
    return sum(times[:8]) - idle, idle


def tuning_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the environment variables that change which kernels or how many threads a numerical library uses."""
    return sorted(name for name in environment if name.startswith(KERNELS))


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def versions() -> dict[str, str]:
    """Return the versions of Python and of each installed library of LIBRARIES, and the commit of a git checkout."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed | ({"commit": commit} if (commit := _commit()) else {})


def source() -> Path:
    """Return the folder that mha_core is imported from."""
    spec = find_spec("mha_core")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _commit() -> str:
    """Return the abbreviated hash of HEAD, with "-dirty" if files other than pages, pictures and results differ from it."""
    git = ["git", "-C", str(source().parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", *NO_CODE], capture_output=True, check=False)
    except FileNotFoundError:  # git is not installed
        return ""
    return commit.stdout.strip() + "-dirty" * (differs.returncode == 1)
