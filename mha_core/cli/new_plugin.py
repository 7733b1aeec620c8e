"""``mha new-plugin``: create a plugin package that installs and passes conformance unchanged."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..dispatch.errors import MhaError
from ..dispatch.registry import Plugin, registry


class CannotWrite(MhaError):
    """The new package cannot be written."""


class BadName(MhaError, ValueError):
    """The name cannot be that of a backend, a module and a distribution."""


_FILES = {
    "backend": {
        "pyproject.toml": "pyproject.toml.template",
        "README.md": "README.md.template",
        "mha_{name}.py": "plugin.py.template",
        "mha_{name}_arrays.py": "arrays.py.template",
        "tests/test_conformance.py": "test_conformance.py.template",
    },
    "engine": {
        "pyproject.toml": "pyproject.toml.template",
        "README.md": "engine_README.md.template",
        "mha_{name}.py": "engine.py.template",
        "mha_{name}_pipes.py": "pipes.py.template",
        "tests/test_engine.py": "test_engine.py.template",
    },
}
"""The files of a plugin that brings a backend and a kernel, or an engine for many processes, and their templates."""


def check_name(name: str, kind: str = "backend") -> str:
    """Return the name. Raises BadName if it cannot name a module and a distribution, or if another backend or engine has it."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f", such as {plain}" if re.fullmatch(r"[a-z][a-z0-9_]*", plain) and not keyword.iskeyword(plain) else ""
        raise BadName(f"{name!r} cannot name a module; give lower-case letters, digits and single underscores{hint}")
    known: Mapping[str, tuple[Any, Plugin]] = registry().backends if kind == "backend" else registry().collectives
    if name in known:
        owner = known[name][1].distribution or known[name][1].name
        article = "an" if kind == "engine" else "a"
        raise BadName(f"{article} {kind} named {name!r} is already installed, from {owner}; give another name")
    return name


def write(name: str, directory: Path, kind: str = "backend") -> Path:
    """Write ``directory/mha-NAME``, a plugin for a ``"backend"`` or an ``"engine"``, and return its path.

    Raises BadName and CannotWrite; existing files are never changed.
    """
    words = {"name": check_name(name, kind), "kind": kind, "standin": "arrays" if kind == "backend" else "pipes"}
    words |= {"distribution": f"mha-{name.replace('_', '-')}", "Array": _class_name(name)}
    root = directory / words["distribution"]
    contents = {path: _render(template, words) for path, template in _FILES[kind].items()}
    if not directory.is_dir():
        raise CannotWrite(f"{directory} is not a directory; create it first, or give another --directory")
    try:
        root.mkdir()
    except FileExistsError:
        raise CannotWrite(f"{root} already exists; give another --directory (nothing was written)") from None
    for path, text in contents.items():
        target = root / path.format(name=name)
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root


def written(root: Path) -> Iterator[Path]:
    """Return the files of a distribution, sorted."""
    return (path for path in sorted(root.rglob("*")) if path.is_file())


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")) + "Array"


def _render(template: str, words: dict[str, str]) -> str:
    return Template((files("mha_core.cli") / "templates" / template).read_text(encoding="utf-8")).substitute(words)
