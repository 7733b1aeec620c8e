"""The public surface as lines of text: every name of ``__all__``, and the parameters of every function, class and method.

``make surface`` writes it to tests/public_surface.txt; tests/test_public_surface.py checks that the file is up to date.
"""

import inspect
import re
from enum import Enum
from pathlib import Path

import mha_core
import mha_core.plugin

RECORDED = Path(__file__).with_suffix(".txt")


def surface():
    """Return a line for each public name, in the order of ``__all__``, and after a class its members in alphabetical order."""
    return [line for module in (mha_core, mha_core.plugin) for name in module.__all__ for line in _described(module, name)]


def _described(module, name):
    value, path = getattr(module, name), f"{module.__name__}.{name}"
    if isinstance(value, frozenset):
        yield f"{path} = {', '.join(sorted(value))}"
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
    """Return whether a class of mha_core defines the member, and not one of the standard library."""
    owner = next((base for base in cls.__mro__ if member in vars(base)), type(cls))
    return owner.__module__.partition(".")[0] == "mha_core"


def _parameters(value):
    """Return the signature without annotations, which change nothing for a caller; "" if the signature is not ours."""
    inherited = inspect.isclass(value) and issubclass(value, Exception | Enum) and not _is_ours(value, "__init__")
    if inherited or value.__module__.partition(".")[0] != "mha_core":
        return ""
    bare, signature = inspect.Parameter.empty, inspect.signature(value)
    parameters = [parameter.replace(annotation=bare) for parameter in signature.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(signature.replace(parameters=parameters, return_annotation=bare)))


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
