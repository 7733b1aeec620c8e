"""Problems without their arrays, by which compiled functions are kept: the arrays are arguments, all else is fixed."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from jax import Array


@dataclass(frozen=True)
class Fixed:
    """A value that is no array."""

    key: Hashable
    value: Any = field(compare=False)

    @classmethod
    def of(cls, value: Any) -> "Fixed":
        try:
            hash(value)
        except TypeError:
            return cls(id(value), value)
        kinds = map(type, value) if isinstance(value, tuple) else ()
        return cls((type(value), *kinds, value), value)  # True == 1 == 1.0


@dataclass(frozen=True)
class Outline:
    """A dataclass without the arrays in it, such as a problem or a mask. Equal outlines differ in these arrays only."""

    kind: type
    inside: tuple[tuple[str, "Outline | None"], ...]
    """The fields that hold another dataclass, or an array, which is None here."""
    fixed: tuple[tuple[str, Fixed], ...]
    """All other fields."""

    @classmethod
    def of(cls, value: Any) -> "Outline":
        inside: list[tuple[str, Outline | None]] = []
        fixed: list[tuple[str, Fixed]] = []
        for name in (each.name for each in fields(value)):
            x = getattr(value, name)
            if isinstance(x, Array):
                inside.append((name, None))
            elif _consists_of_fields(x):
                inside.append((name, cls.of(x)))
            else:
                fixed.append((name, Fixed.of(x)))
        return cls(type(value), tuple(inside), tuple(fixed))

    def arrays(self, value: Any) -> Iterator[Any]:
        """Yield what a value of this outline has in the places of the arrays; None for all those of a part that is None."""
        for name, part in self.inside:
            x = None if value is None else getattr(value, name)
            if part is None:
                yield x
            else:
                yield from part.arrays(x)

    def filled(self, arrays: Iterable[Any]) -> Any:
        """Return the value with these arrays, given in the order of ``arrays``."""
        remaining = iter(arrays)
        value = object.__new__(self.kind)  # what a constructor would check has been checked
        for name, x in self.fixed:
            object.__setattr__(value, name, x.value)
        for name, part in self.inside:
            object.__setattr__(value, name, next(remaining) if part is None else part.filled(remaining))
        return value


def _consists_of_fields(x: Any) -> bool:
    """Return whether a value is a dataclass; an instance of a subclass may have other attributes."""
    return is_dataclass(x) and not isinstance(x, type) and "__dataclass_fields__" in vars(type(x))
