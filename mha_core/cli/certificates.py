"""The certificates of conformance that installed plugins ship: ``certificates/*.json`` in the package of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..dispatch.registry import Plugin, registry

Certificate = Mapping[str, Any]

_FORMAT = 1
_NEEDED = {"backend", "date", "device", "result", "quick", "selection", "libraries", "sections", "covering"}


def certificates() -> tuple[dict[str, list[Certificate]], list[str]]:
    """Return the certificates of each backend, the newest first, and a line for each file that is no certificate."""
    by_backend: dict[str, list[Certificate]] = {}
    unreadable: list[str] = []
    for plugin in registry().plugins:
        for file in _shipped(plugin):
            try:
                certificate = json.loads(file.read_text(encoding="utf-8"))
                missing = _NEEDED - certificate.keys()
                if certificate.get("format") != _FORMAT or missing:
                    raise ValueError(f"it lacks {', '.join(sorted(missing))}" if missing else f"its format is not {_FORMAT}")
            except (ValueError, AttributeError) as error:
                unreadable.append(f"{file.name} of {plugin.owner} is no certificate: {error}")
            else:
                by_backend.setdefault(certificate["backend"], []).append(certificate)
    for each in by_backend.values():
        each.sort(key=lambda one: str(one["date"]), reverse=True)
    return by_backend, unreadable


def summary(certificate: Certificate) -> str:
    """Return the date of a certificate, and what is less than a whole suite that passed, in words."""
    less = [certificate["result"]] if certificate["result"] != "passed" else []
    less += ["quick"] if certificate["quick"] else []
    less += ["in part"] if certificate["selection"] else []
    return " ".join([certificate["date"][:10], *less])


def _shipped(plugin: Plugin) -> list[Any]:
    package = getattr(getattr(plugin.module, "__spec__", None), "parent", None)
    folder = files(package) / "certificates" if package else None  # None: one file, or a plugin registered by hand
    if folder is None or not folder.is_dir():
        return []
    return sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
