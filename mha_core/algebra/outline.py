"""Records without their arrays, for libraries that compile or differentiate a function by its array arguments alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from .attention_vjp import AttentionGradients
from .problem import AttentionProblem

_OPERANDS = ("query", "key", "value", "sink")


@dataclass(frozen=True)
class Fixed:
    """A value that is no array."""

    key: Hashable
    value: Any = field(compare=False)

    @classmethod
    def of(cls, value: Any) -> Fixed:
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
    inside: tuple[tuple[Any, Outline | None], ...]
    """The fields that hold another dataclass, a tuple of arrays, or an array, which is None here; of a tuple, its indices."""
    fixed: tuple[tuple[str, Fixed], ...]
    """All other fields."""

    @classmethod
    def of(cls, value: Any, array: type) -> Outline:
        """Return the outline of a value; ``array`` is the library's class of arrays."""
        inside: list[tuple[str, Outline | None]] = []
        fixed: list[tuple[str, Fixed]] = []
        for name in (each.name for each in fields(value)):
            x = getattr(value, name)
            if isinstance(x, array):
                inside.append((name, None))
            elif type(x) is tuple and any(isinstance(each, array) for each in x):
                inside.append((name, cls(tuple, tuple((at, None) for at in range(len(x))), ())))
            elif _consists_of_fields(x):
                inside.append((name, cls.of(x, array)))
            else:
                fixed.append((name, Fixed.of(x)))
        return cls(type(value), tuple(inside), tuple(fixed))

    def arrays(self, value: Any) -> Iterator[Any]:
        """Yield what a value of this outline has in the places of the arrays; None for all those of a part that is None."""
        for name, part in self.inside:
            x = None if value is None else value[name] if self.kind is tuple else getattr(value, name)
            if part is None:
                yield x
            else:
                yield from part.arrays(x)

    def filled(self, arrays: Iterable[Any]) -> Any:
        """Return the value with these arrays, given in the order of ``arrays``."""
        remaining = iter(arrays)
        if self.kind is tuple:
            return tuple(next(remaining) for _ in self.inside)
        value: Any = object.__new__(self.kind)  # what a constructor would check has been checked
        for name, x in self.fixed:
            object.__setattr__(value, name, x.value)
        for name, part in self.inside:
            object.__setattr__(value, name, next(remaining) if part is None else part.filled(remaining))
        return value

    # outlines of an AttentionProblem

    @property
    def bias(self) -> Outline:
        """The outline of the problem's bias."""
        bias = dict(self.inside)["bias"]
        assert bias is not None
        return bias

    def names(self, flags: Iterable[bool]) -> list[str]:
        """Return the fields of ``AttentionGradients`` that belong to the flagged arrays."""
        p: AttentionProblem = self.filled(flags)
        of_bias = p.bias is not None and any(self.bias.arrays(p.bias))
        return [name for name in _OPERANDS if getattr(p, name)] + ["bias"] * of_bias

    def placed(self, p: AttentionProblem, gradients: AttentionGradients, of_bias: Sequence[Any] | None) -> list[Any]:
        """Return gradients in the places of the problem's arrays, None for others; ``of_bias``: those of the bias's arrays."""
        bias = None if of_bias is None else self.bias.filled(of_bias)
        changes: dict[str, Any] = dict.fromkeys(("structure", "mask", "offset", "dropout"))
        of_operands: list[Any] = list(gradients[:3])
        return list(self.arrays(p.with_arrays(*of_operands, **changes, bias=bias, sink=gradients.sink)))


def _consists_of_fields(x: Any) -> bool:
    """Return whether a value is a dataclass; an instance of a subclass may have other attributes."""
    return is_dataclass(x) and not isinstance(x, type) and "__dataclass_fields__" in vars(type(x))
