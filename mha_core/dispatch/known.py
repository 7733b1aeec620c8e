"""What messages say of backends and distributions that may not be installed: nothing here is needed to compute."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from .contract import Backend
from .registry import registry

_PLACE = "in a checkout of mha-core"


@cache
def distributions() -> dict[str, dict[str, Any]]:
    """Return each distribution's entry of known.toml."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads((files("mha_core.dispatch") / "known.toml").read_text(encoding="utf-8"))


def install(distribution: str) -> str:
    """Return the command that installs a distribution of this project."""
    return f"{distributions()[distribution]['install']}, {_PLACE}"


def backends() -> dict[str, str]:
    """Return the distribution of each backend that mha-core itself does not contain."""
    return {entry["backend"]: name for name, entry in distributions().items() if "backend" in entry}


def how_to_install(backend: str) -> str:
    """Return what a message says of one of ``backends()`` that is not installed."""
    return f"backend {backend!r} is not installed: {install(backends()[backend])}"


def is_installed(backend: Backend) -> bool:
    """Return whether the library of a backend can be found, without importing it; it may still have no device."""
    from importlib.util import find_spec

    modules = {name.partition(":")[0].partition(".")[0] for name in backend.types if isinstance(name, str)}
    return not modules or any(sys.modules.get(name) is not None or find_spec(name) is not None for name in modules)


def installed() -> list[str]:
    """Return the names of the backends that are installed."""
    return sorted(name for name, (backend, _) in registry().backends.items() if is_installed(backend))


def listing() -> str:
    """Return which backends are installed, and the commands that install the others, for the end of a message."""
    present, commands = installed(), {name: record.install for name, (record, _) in registry().backends.items()}
    commands = {name: distributions()[owner]["install"] for name, owner in backends().items()} | commands
    missing = sorted(commands.keys() - set(present))
    absent = ", ".join(f"{name} ({commands[name]})" if commands[name] else name for name in missing)
    place = f", paths {_PLACE}" if "./" in absent else ""
    return f"installed: {', '.join(present) or 'none'}" + (f"; not installed: {absent}{place}" if absent else "")


def device_advice(device: object, backend: str = "") -> str:
    """Return what to write for a device that ``backend`` lacks; "" if it has such devices, or if no known backend has."""
    kind = str(device).partition(":")[0]
    owners = [name for entry in distributions().values() for name, kinds in entry.get("devices", {}).items() if kind in kinds]
    if not owners or backend in owners:
        return ""
    return f"write backend={' or '.join(map(repr, owners))}, device={str(device)!r}"
