"""The record of each backend for ``mha backends``: its library is imported in a separate process, where it may fail."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..dispatch import known
from ..dispatch.registry import registry
from ..dispatch.selection import BackendInfo, backends

Record = dict[str, Any]

_PROBE = """
import json, sys, traceback
from mha_core.dispatch.backend import load
from mha_core.dispatch.errors import BackendUnavailable
from mha_core.dispatch.kernels import broken_kernels
try:
    record = load(sys.argv[1]).record
    row = {
        "libraries": dict(record.versions()) if record.versions else {},
        "devices": [str(device) for device in record.devices()] if record.devices else [],
        "broken_kernels": broken_kernels(sys.argv[1]),
    }
except BackendUnavailable as error:
    cause = error.__cause__
    row = {"reason": f"{type(cause).__name__}: {cause}", "install": error.install}
    row["traceback"] = "".join(traceback.format_exception(cause))
print(json.dumps(row))
"""
_TIMEOUT = 300  # seconds; the slowest library so far took about ten


def report(name: str | None = None) -> list[Record]:
    """Return a record for each installed backend and broken plugin, and each known backend that is not installed; or for one.

    The backends are probed in parallel.
    """
    listed = [each for each in backends() if name in (None, each.name)]
    with ThreadPoolExecutor() as pool:
        rows = list(pool.map(_record, listed))
    for other, owner in known.backends().items():
        if name is None and other not in registry().backends:
            rows.append(_row(other, "not installed", owner) | {"install": known.install(owner)})
    return rows


def _row(name: str, state: str, distribution: str) -> Record:
    return {
        "name": name,
        "state": state,
        "reason": "",
        "install": "",
        "distribution": distribution,
        "version": "",
        "libraries": {},
        "devices": [],
        "kernels": [],
        "broken_kernels": {},
        "traceback": "",
    }


def _record(backend: BackendInfo) -> Record:
    row = _row(backend.name, backend.state, backend.distribution)
    row |= {"reason": backend.reason, "version": backend.version, "traceback": backend.traceback, "kernels": [*backend.kernels]}
    if backend.state == "registered":
        row |= _probe(backend.name)
        row["state"] = "unavailable" if row["reason"] else "ready"
    return row


def _probe(name: str) -> Record:
    """Return libraries and devices of a backend, or the error, by loading it in a separate process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, name], capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"its library took more than {_TIMEOUT} seconds to load"}
    if done.returncode == 0:
        row: Record = json.loads(done.stdout.splitlines()[-1])
        return row
    lines = done.stderr.strip().splitlines()
    return {
        "reason": lines[-1] if lines else f"the process that loads it exited with status {done.returncode}",
        "traceback": done.stderr,
    }
