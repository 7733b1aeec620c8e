"""What messages say of backends and distributions that may not be installed: nothing here is needed to compute."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from ..algebra.arrays import dtype_name
from .contract import Backend
from .registry import registry

DTYPES = ("float16", "bfloat16", "float32", "float64")
"""The names of floating dtypes."""
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


def absent(backend: str, op: str = "") -> list[str]:
    """Return the known distributions that are not installed and have kernels for a backend, of one operation if it is given."""
    present = {plugin.source for plugin in registry().plugins}
    kernels = {name: entry.get("kernels", {}).get(backend, ()) for name, entry in distributions().items()}
    return [name for name, ops in kernels.items() if ops and (not op or op in ops) and name not in present]


def absent_kernels(backend: str, op: str) -> dict[str, str]:
    """Return the command that installs each known kernel of an ``absent`` distribution, by the kernel's name."""
    entries = (distributions()[name] for name in absent(backend, op))
    return {entry["kernel"]: entry["install"] for entry in entries}


def advice_on_kernels(calls: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each known distribution that is ``absent`` for some of these calls, given as backend and operation."""
    from importlib.metadata import entry_points

    served: dict[str, dict[str, None]] = {}
    for backend, op in calls:
        for name in absent(backend, op):
            served.setdefault(name, {})[backend] = None
    for name, backends in served.items():
        here = "`mha bench --here` says what it would bring on this machine"
        if not entry_points(group="mha_core.commands", name="bench"):
            here += f", once mha-conformance is installed: {distributions()['mha-conformance']['install']}"
        yield f"{name}, with kernels for {' and '.join(backends)}, is not installed: {install(name)}; {here}"


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


def device_advice(device: object, backend: str = "", *, in_command: bool = False) -> str:
    """Return what to write for a device that ``backend`` lacks; "" if it has such devices, or if no known backend has.

    ``in_command``: as options of the command ``mha``.
    """
    name = str(device)
    name = "cuda" if name == "gpu" else name
    kind = name.partition(":")[0]
    owners = [each for entry in distributions().values() for each, kinds in entry.get("devices", {}).items() if kind in kinds]
    if not owners or backend in owners:
        return ""
    if in_command:
        return f"write --backend {' or '.join(owners)} --device {name}"
    return f"write backend={' or '.join(map(repr, owners))}, device={name!r}"


def not_a_name(value: Any) -> str:
    """Return the message about a value that is given as a backend and is no string: what to write, where it belongs to one."""
    is_module = isinstance(value, ModuleType)
    module = value if is_module else value if isinstance(value, type) else type(value)
    library = (module.__name__ if is_module else module.__module__).partition(".")[0]
    name = f", such as {library!r}" if library in registry().backends else ""
    dtype = None if is_module or dtype_name(value) not in DTYPES else dtype_name(value)
    advice = f"; write dtype={dtype!r} after the name" if dtype else "" if is_module else "; a device is written as device="
    return f"backend is {f'the module {library}' if is_module else repr(value)}; expected the name of a backend{name}{advice}"
