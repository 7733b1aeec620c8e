"""``mha backends``: what is installed, and whether it can be used."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from rich.table import Table
from rich.text import Text

from ..dispatch.selection import BackendInfo, backends

_PROBE = """
import json, sys
from mha_core.dispatch.backend import load
from mha_core.dispatch.errors import BackendUnavailable
try:
    record = load(sys.argv[1]).record
    found = {
        "versions": dict(record.versions()) if record.versions else {},
        "devices": [str(device) for device in record.devices()] if record.devices else [],
    }
except BackendUnavailable as error:
    found = {"error": f"{type(error.__cause__).__name__}: {error.__cause__}", "install": error.install}
print(json.dumps(found))
"""


def probe(name: str) -> dict[str, Any]:
    """Versions and devices of a backend, or the error, from a process of its own: nothing is imported into this one."""
    done = subprocess.run([sys.executable, "-c", _PROBE, name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    lines = done.stderr.strip().splitlines()
    return {"error": lines[-1] if lines else f"the probe ended with status {done.returncode}"}


def backends_table() -> Table:
    """A row for each registered backend and each broken plugin."""
    table = Table(title=None)
    for column in ("backend", "state", "library", "devices", "from"):
        table.add_column(column, overflow="fold")
    for backend in backends():
        table.add_row(*map(Text, _row(backend)))  # no markup: brackets of an install line are meant
    return table


def _row(backend: BackendInfo) -> tuple[str, ...]:
    owner = f"{backend.distribution} {backend.version}"
    if backend.state == "broken":
        return backend.name, f"broken: {backend.reason}", "", "", owner
    found = probe(backend.name)
    if "error" in found:
        remedy = f"; {found['install']}" if found.get("install") else ""
        return backend.name, f"unavailable: {found['error']}{remedy}", "", "", owner
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return backend.name, "ready", versions, ", ".join(found["devices"]), owner
