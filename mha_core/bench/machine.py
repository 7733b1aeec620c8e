"""On what a measurement was made: the class of machine and the versions, without a host's name and without a path."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
KERNELS = ("OPENBLAS_", "MKL_", "OMP_", "KMP_", "DNNL_", "ONEDNN_", "NPY_", "VECLIB_")
LIBRARIES = ("mha-core", "numpy", "torch", "sentence-transformers", "transformers")


def processor() -> dict[str, object]:
    """Model, cores that this process may use, and which of FLAGS it has."""
    told = _cpuinfo()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": told.get("model name") or platform.processor() or "unknown",
        "cores": cores,
        "flags": [flag for flag in FLAGS if flag in told.get("flags", "").split()],
        "system": f"{platform.system()} {platform.machine()}",
    }


def not_as_they_come(environment: Mapping[str, str]) -> list[str]:
    """The variables by which a library would choose other kernels, or another number of threads, than by itself."""
    return sorted(name for name in environment if name.startswith(KERNELS))


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def versions() -> dict[str, str]:
    """Of Python and of each of LIBRARIES that is installed, and the commit of mha-core where it is a checkout."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | ({"commit": commit} if (commit := _commit()) else {})


def source() -> Path:
    """The folder that mha_core is imported from."""
    spec = find_spec("mha_core")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _commit() -> str:
    try:
        told = subprocess.run(
            ["git", "-C", str(source()), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:  # no git
        return ""
    return told.stdout.strip()
