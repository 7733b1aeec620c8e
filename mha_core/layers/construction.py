"""What the classes of layers check when one is made, and what they say of the names of torch's modules."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..algebra.arrays import is_array
from ..dispatch.typed import field_types, fits, in_words
from ..ops.hints import ATTRIBUTES, LAYERS, hinted, missing

_SIZES = 1, 1.0, True, "relu"
"""A value of each type that sizes and settings have, and arrays and layers do not."""
_TYPES_OF_SIZES = frozenset(map(type, _SIZES))
_ARRAY = type("_Array", (), {"dtype": None, "shape": ()})()


class _Fields(NamedTuple):
    """The fields of a class as its constructor takes them; none for a class from elsewhere, which may have its own."""

    names: frozenset[str] = frozenset()
    positions: tuple[str, ...] = ()
    """The same in order."""
    layers: frozenset[str] = frozenset()
    """Those that neither a size nor an array fits."""
    arrays: frozenset[str] = frozenset()
    """Those that an array fits and no size. By name they may be anything: ``layer.map`` may return a number for each array."""


class Constructed:
    """The base of ``Layer``: sizes in place of layers and arrays are refused, and so are classes that are not dataclasses."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Raise TypeError for what cannot be a layer: it would fail later, in words about something else."""
        known = cls.__dict__.get("_constructor")
        if known is None:
            _check_class(cls)
            known = cls._constructor = _fields_of(cls)
        if known.names:
            for name, value in zip(known.positions, values, strict=False):
                if name in known.layers or name in known.arrays:
                    _check_value(cls, name, value)
            for name in known.layers:
                if name in named:
                    _check_value(cls, name, named[name])
            if not known.names.issuperset(named):
                _check_names(cls, known.positions, named)
        return super().__new__(cls)

    if not TYPE_CHECKING:  # a type checker still finds attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Say what to write for an attribute of torch's modules; only what is missing comes here."""
            return missing(self, name, ATTRIBUTES)


def with_hints(cls: Any) -> None:
    """Let errors about the arguments of ``init`` contain the name of the class, and what to write for names of torch."""
    method = vars(cls).get("init")
    function = getattr(method if isinstance(method, classmethod) else getattr(cls, "init", None), "__func__", None)
    if not isinstance(function, FunctionType) or (method is not None and not isinstance(method, classmethod)):
        return
    plain = getattr(function, "unhinted", function)
    if method is None:
        plain = _renamed(plain, f"{cls.__name__}.init")
    checked: Any = hinted(plain, LAYERS)
    checked.unhinted = plain
    cls.init = classmethod(checked)


def _renamed(function: FunctionType, name: str) -> FunctionType:
    """Return the same function under another name: Python's errors about missing arguments contain it."""
    code, closure = function.__code__, function.__closure__
    renamed = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    renamed.__kwdefaults__, renamed.__annotations__ = function.__kwdefaults__, function.__annotations__
    renamed.__dict__.update(function.__dict__)
    renamed.__qualname__ = name
    return renamed


def _check_class(cls: Any) -> None:
    """Raise TypeError for a class that holds something and is not a dataclass: its arrays would be found nowhere."""
    for kind in cls.__mro__[: cls.__mro__.index(Constructed)]:
        members = vars(kind)
        if "__dataclass_fields__" in members or not issubclass(kind, Constructed):
            continue
        annotations = members.get("__annotations__", {}).values()
        holds = any("ClassVar" not in str(each) for each in annotations) or ("__init__" in members and not fields(kind))
        if holds or any(is_array(each) or isinstance(each, Constructed) for each in members.values()):
            raise TypeError(
                f"{kind.__name__} derives from mha.Layer: write @dataclass(frozen=True, eq=False) above the class, and its "
                "arrays and layers as fields, such as w: Any"
            )


def _fields_of(cls: Any) -> _Fields:
    if not cls.__module__.startswith(f"{__package__}."):
        return _Fields()
    refuse = {name: kind for name, kind in field_types(cls).items() if not any(fits(size, kind) for size in _SIZES)}
    arrays = frozenset(name for name, declared in refuse.items() if fits(_ARRAY, declared))
    names = tuple(field.name for field in fields(cls))
    return _Fields(frozenset(names), names, frozenset(refuse) - arrays, arrays)


def _check_value(cls: Any, name: str, value: Any) -> None:
    if type(value) in _TYPES_OF_SIZES:
        expected = in_words(field_types(cls)[name])
        raise TypeError(f"{name} of {cls.__name__} is {value!r}; expected {expected}{_init(cls)}")


def _check_names(cls: Any, known: Iterable[str], given: Iterable[str]) -> None:
    """Raise TypeError for a name that ``init`` takes, or torch; Python's own error is enough for others."""
    of_init = inspect.signature(cls.init).parameters if hasattr(cls, "init") else ()
    for name in given:
        if name not in known and (name in LAYERS or name in of_init):
            raise TypeError(f"{cls.__name__}() takes {', '.join(known)}, and no {name}{_init(cls)}")


def _init(cls: Any) -> str:
    """Return the end of a message that names the constructor from sizes."""
    return f": write {cls.__name__}.init(...), which takes sizes" if hasattr(cls, "init") else ""
