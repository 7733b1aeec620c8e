"""Processor and library versions of a measurement, without host name or paths."""

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
    """Return the processor's model, the number of cores this process may use, which of FLAGS it has, and the system."""
    cpu = _cpuinfo()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": cpu.get("model name") or platform.processor() or "unknown",
        "cores": cores,
        "flags": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "system": f"{platform.system()} {platform.machine()}",
    }


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
    try:
        done = subprocess.run(
            ["git", "-C", str(source()), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:  # git is not installed
        return ""
    return done.stdout.strip()
