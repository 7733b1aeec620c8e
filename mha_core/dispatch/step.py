"""Steps: the calls that a compiler of an array library records whole, instead of following the Python code inside.

A compiler such as torch.compile interprets the Python code of a call. It could follow neither the search for plugins nor the
choice of a kernel, which reads context variables. A backend for such a library therefore makes the compiler follow a function
of its own in place of ``Step.__call__``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from . import registry
from .selection import backend_of_type


class Step:
    """A public function that a compiler of an array library may record whole, instead of following the Python code inside."""

    every: ClassVar[list[Step]] = []
    """All steps, each at its ``number``."""
    at = 0
    """The index of an argument that is an array."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.number = run, len(Step.every)
        Step.every.append(self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if type(arguments[self.at]).__module__ not in registry.known_modules and met(arguments[self.at]):
            return self(*arguments, **options)  # a compiler may follow its own function now
        return self.run(*arguments, **options)

    @classmethod
    def calls(cls) -> list[Any]:
        """Return the functions that a backend may replace for its compiler: ``__call__`` of this class and its subclasses."""
        kinds: list[Any] = [cls, *cls.__subclasses__()]
        return [kind.__call__ for kind in kinds]


def met(x: Any) -> bool:
    """Return whether an array's type belongs to a backend; the first call for a type loads the library.

    It looks up an attribute of this module, because compilers run a module's ``__getattr__`` as it is.
    """
    kind = type(x)
    found: bool = getattr(sys.modules[__name__], f"{kind.__module__}:{kind.__qualname__}".replace(".", "/"))
    if found:
        registry.known_modules.add(kind.__module__)  # it is known already, but not to a compiler that follows this line
    return found


def __getattr__(name: str) -> bool:
    module, colon, kind = name.replace("/", ".").partition(":")
    if not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cls = getattr(sys.modules.get(module), kind, None)
    return isinstance(cls, type) and backend_of_type(cls) is not None
