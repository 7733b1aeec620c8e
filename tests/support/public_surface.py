"""The public surface as lines of text: every name of ``__all__``, and the parameters of every function, class and method.

``python tests/support/public_surface.py`` writes it to public_surface.txt, and the contract of plugins, name by name, into
docs/compatibility.md; tests/core/test_tools.py checks both.
"""

import inspect
import re
import sys
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from project import BENCHES

sys.path.append(str(BENCHES))

import mha_conformance.ranks
import mha_core
import mha_core.plugin
import mha_numpy.shared
import mha_text
import reports
from mha_conformance.find import NEEDED
from mha_core.dispatch import hookspecs
from mha_core.dispatch.contract import FEATURES, STATE_FEATURES, Backend, Collectives, Kernel
from mha_core.dispatch.registry import GROUP

MODULES = (mha_core, mha_core.plugin, mha_text, mha_conformance.ranks, mha_numpy.shared)
OURS = {module.__name__.partition(".")[0] for module in MODULES}
RECORDED = Path(__file__).with_suffix(".txt")

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- the contract: written by tests/support/public_surface.py -->", "<!-- end of the contract -->"
PLUGIN = "mha_core.plugin."


def surface():
    """Return a line for each public name, in the order of ``__all__``, and after a class its members in alphabetical order."""
    return [line for module in MODULES for name in _names(module) for line in _described(module, name)]


def _names(module):
    """Return ``__all__``, or without it the names of the functions and classes that the module defines."""
    defined = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return getattr(module, "__all__", None) or sorted(name for name in defined if not name.startswith("_"))


def _described(module, name):
    value, path = getattr(module, name), f"{module.__name__}.{name}"
    if isinstance(value, frozenset | int):
        yield f"{path} = {value if isinstance(value, int) else ', '.join(sorted(value))}"
        return
    if not inspect.isclass(value):
        yield f"{path}{_parameters(value)}"
        return
    yield f"class {path}{_parameters(value)}"
    for member in sorted(dir(value)):
        if (not member.startswith("_") or member == "__call__") and _is_ours(value, member):
            kind = type(inspect.getattr_static(value, member)).__name__
            if kind in ("function", "classmethod", "staticmethod"):
                yield f"    {kind} {member}{_parameters(getattr(value, member))}"
            else:
                yield f"    {'property' if kind == 'property' else 'attribute'} {member}"


def _is_ours(cls, member):
    """Return whether a class of ours defines the member, and not one of the standard library."""
    owner = next((base for base in cls.__mro__ if member in vars(base)), type(cls))
    return owner.__module__.partition(".")[0] in OURS


def _parameters(value):
    return re.sub(r" at 0x\w+", "", str(signature(value) or ""))


def signature(value):
    """Return the signature without annotations, which change nothing for a caller; None if the signature is not ours."""
    inherited = inspect.isclass(value) and issubclass(value, Exception | Enum) and not _is_ours(value, "__init__")
    if inherited or value.__module__.partition(".")[0] not in OURS:
        return None
    bare, whole = inspect.Parameter.empty, inspect.signature(value)
    parameters = [parameter.replace(annotation=bare) for parameter in whole.parameters.values()]
    return whole.replace(parameters=parameters, return_annotation=bare)


def contract():
    """Return the contract as Markdown."""
    hooks = sorted(name for name in vars(hookspecs) if name.startswith("mha_"))
    parts = [
        f"Entry points of the group `{GROUP}`. Hooks: {_listed(hooks)}.",
        _table("record", "required fields", "optional fields", map(_fields, (Backend, Kernel, Collectives))),
        f"Functions and dtypes of a namespace, as in the array API standard of 2024.12: {_listed(NEEDED.split())}.",
        f"Features that the state of a library may add to any call: {_listed(sorted(STATE_FEATURES))}.",
        _table("operation", "features", ((f"`{name}`", _listed(sorted(each)) or "none") for name, each in FEATURES.items())),
        "Names to import, with their parameters and members:",
        "```text\n" + "\n".join(_names_of_plugins()) + "\n```",
    ]
    return "\n\n".join(parts) + "\n\n"


def _fields(record):
    def named(*, required):
        return _listed(each.name for each in fields(record) if (each.default is each.default_factory is MISSING) is required)

    return f"`{record.__name__}`", named(required=True), named(required=False)


def _names_of_plugins():
    ours = False
    for line in surface():
        ours = line.removeprefix("class ").startswith(PLUGIN) if not line.startswith(" ") else ours
        if ours:
            yield line.replace(PLUGIN, "")


def _listed(names):
    return ", ".join(f"`{name}`" for name in names)


def _table(*heading_and_rows):
    *heading, rows = heading_and_rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


def written(page):
    """Return the text of a page with today's contract in it."""
    return reports.inserted(page, BEGIN, END, contract())


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
