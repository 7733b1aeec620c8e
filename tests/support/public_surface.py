"""The public surface as lines of text: every name of ``__all__``, and the parameters of every function, class and method.

``python tests/support/public_surface.py`` writes it to public_surface.txt; tests/core/test_tools.py checks the file.
"""

import inspect
import re
from enum import Enum
from pathlib import Path

import mha_conformance.ranks
import mha_core
import mha_core.plugin
import mha_numpy.shared
import mha_text

MODULES = (mha_core, mha_core.plugin, mha_text, mha_conformance.ranks, mha_numpy.shared)
OURS = {module.__name__.partition(".")[0] for module in MODULES}
RECORDED = Path(__file__).with_suffix(".txt")


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
    """Return the signature without annotations, which change nothing for a caller; "" if the signature is not ours."""
    inherited = inspect.isclass(value) and issubclass(value, Exception | Enum) and not _is_ours(value, "__init__")
    if inherited or value.__module__.partition(".")[0] not in OURS:
        return ""
    bare, signature = inspect.Parameter.empty, inspect.signature(value)
    parameters = [parameter.replace(annotation=bare) for parameter in signature.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(signature.replace(parameters=parameters, return_annotation=bare)))


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
