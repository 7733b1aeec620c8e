"""``mha new-plugin``: create a plugin package that installs and passes conformance unchanged."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from ..dispatch.errors import MhaError
from ..dispatch.registry import Plugin, registry
from .command import command, failing_clearly


class CannotWrite(MhaError):
    """The new package cannot be written."""


class BadName(MhaError, ValueError):
    """The name cannot be that of a backend, a module and a distribution."""


_FILES = {
    "backend": {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "mha_{name}/__init__.py": "plugin.py",
        "mha_{name}/arrays.py": "arrays.py",
        "tests/test_conformance.py": "test_conformance.py",
        "asv.conf.json": "asv.conf.json",
        "benchmarks/__init__.py": "benchmarks.py",
        ".github/workflows/conformance.yml": "workflow.yml",
        "LICENSE": "LICENSE",
        ".gitignore": "gitignore",
    },
    "engine": {
        "pyproject.toml": "pyproject.toml",
        "README.md": "engine_README.md",
        "mha_{name}/__init__.py": "engine.py",
        "mha_{name}/pipes.py": "pipes.py",
        "tests/test_engine.py": "test_engine.py",
        "LICENSE": "LICENSE",
        ".gitignore": "gitignore",
    },
}
"""The files of each kind of plugin, and their templates."""


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
    words = {"name": check_name(name, kind), "kind": kind}
    words["extras"] = 'bench = ["mha-conformance[report]"]\n' if kind == "backend" else ""
    words |= {"distribution": f"mha-{name.replace('_', '-')}", "Array": _class_name(name)}
    root = directory / words["distribution"]
    contents = {path.format(name=name): _render(f"{file}.template", words) for path, file in _FILES[kind].items()}
    if not directory.is_dir():
        raise CannotWrite(f"{directory} is not a directory; create it first, or give another --directory")
    try:
        root.mkdir()
    except FileExistsError:
        raise CannotWrite(f"{root} already exists; give another --directory (nothing was written)") from None
    for path, text in contents.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root


def written(root: Path) -> Iterator[Path]:
    """Return the files of a distribution, sorted."""
    return (path for path in sorted(root.rglob("*")) if path.is_file())


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")) + "Array"


def _render(template: str, words: dict[str, str]) -> str:
    return Template((files("mha_core.cli") / "templates" / template).read_text(encoding="utf-8")).substitute(words)


@command("Example:  mha new-plugin mylibrary")
def new_plugin_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the backend or engine: lower-case letters, digits, underscores.")
    ],
    *,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="An engine that sends arrays between processes, instead of a backend.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--directory", "-d", metavar="DIR", help="Parent of the new directory mha-NAME.")
    ] = Path("."),
) -> None:
    """Create a working plugin package, with the lines to replace marked."""
    kind = "engine" if collectives else "backend"
    try:
        check_name(name, kind)
    except BadName as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    with failing_clearly():
        root = write(name, directory, kind)
        for path in written(root):
            typer.echo(path)
        typer.echo(f"\nnext:  cd {root} && pip install -e '.[test]' && python -m pytest tests")
