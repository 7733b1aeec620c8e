"""Expressions of Python's operators over the indices of pairs, arrays and a score: evaluated on any library, and derived.

A backend evaluates one on the blocks of indices that core passes to a function; the oracle, on indices of all pairs in float64.
With ``Rounded`` numbers, every operation adds its own rounding error to those of its operands (Higham 2002, section 3.3).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .attention import Floats


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator with its operands: expressions, names of values, or numbers."""

    name: str
    operands: tuple[Expression, ...]

    def __str__(self) -> str:
        first, *others = map(str, self.operands)
        if self.name == "[]":
            return f"{first}[{', '.join(others)}]"
        if not others:
            return f"abs({first})" if self.name == "abs" else f"{self.name}{first}"
        return f"({first} {self.name} {others[0]})"


Expression: TypeAlias = Operation | str | int | float
OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "|": operator.or_,
    "~": operator.invert,
    "abs": abs,
    "-": lambda x, *y: operator.sub(x, *y) if y else operator.neg(x),
    "[]": lambda x, *index: x[index if len(index) > 1 else index[0]],
    "sign": lambda x: np.sign(x.value),  # only in derivatives, of numbers that have no error
}


def op(name: str, *operands: Expression) -> Operation:
    return Operation(name, operands)


def evaluated(expression: Expression, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression, from those of its names."""
    if isinstance(expression, str):
        return values[expression]
    if not isinstance(expression, Operation):
        return expression
    return OPERATORS[expression.name](*(evaluated(each, values) for each in expression.operands))


def reads_of(name: str, expression: Expression) -> set[Operation]:
    """Return the places where an expression reads an array of this name by an index."""
    if not isinstance(expression, Operation):
        return set()
    here = {expression} if expression.name == "[]" and expression.operands[0] == name else set()
    return here.union(*(reads_of(name, each) for each in expression.operands))


def derivative(expression: Expression, by: Expression) -> Expression:
    """Return the derivative by the score, or by one place where an array is read; 0 if it does not depend on it."""
    if expression is by or (isinstance(by, str) and expression == by):
        return 1.0
    if not isinstance(expression, Operation) or expression.name == "[]":
        return 0
    x, *rest = expression.operands
    dx, *others = (derivative(each, by) for each in expression.operands)
    match expression.name, rest, others:
        case "+", _, [dy]:
            return _sum(dx, dy)
        case "-", _, [dy]:
            return _sum(dx, _product(-1, dy))
        case "-", _, _:
            return _product(-1, dx)
        case "*", [y], [dy]:
            return _sum(_product(dx, y), _product(x, dy))
        case "/", [y], [dy]:
            of_y = _product(_product(-1, dy), op("/", x, op("*", y, y)))
            return _sum(op("/", dx, y) if dx != 0 else 0, of_y)
        case "abs", _, _:
            return _product(dx, op("sign", x))
    return 0  # of integers


def _sum(x: Expression, y: Expression) -> Expression:
    return y if x == 0 else x if y == 0 else op("+", x, y)


def _product(x: Expression, y: Expression) -> Expression:
    if x == 0 or y == 0:
        return 0
    return y if x == 1 else x if y == 1 else op("*", x, y)


@dataclass(frozen=True, eq=False)
class Rounded:
    """Numbers with a bound on the error of each, and the unit roundoff of the operations that follow."""

    value: Floats
    error: Any
    u: float

    __array_ufunc__ = None  # an array of integers leaves operators to this class

    def _from(self, value: Floats, error: Any) -> Rounded:
        return Rounded(value, error + self.u * np.abs(value), self.u)

    def __add__(self, other: Any) -> Rounded:
        return self._from(self.value + _value(other), self.error + _error(other))

    def __sub__(self, other: Any) -> Rounded:
        return self._from(self.value - _value(other), self.error + _error(other))

    def __mul__(self, other: Any) -> Rounded:
        x, y = self.value, _value(other)
        return self._from(x * y, np.abs(x) * _error(other) + np.abs(y) * self.error + self.error * _error(other))

    def __rsub__(self, other: Any) -> Rounded:
        return self._from(other - self.value, self.error)

    def __truediv__(self, other: Any) -> Rounded:
        y = np.abs(_value(other))
        nearest = np.maximum(y - _error(other), np.finfo(float).tiny)
        quotient = self.value / _value(other)
        return self._from(quotient, (self.error + np.abs(quotient) * _error(other)) / nearest)

    def __rtruediv__(self, other: Any) -> Rounded:
        return Rounded(np.asarray(other, dtype=np.float64), 0.0, self.u) / self

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error, self.u)

    def __abs__(self) -> Rounded:
        return Rounded(np.where(np.real(self.value) < 0, -self.value, self.value), self.error, self.u)  # also complex ones

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.value[index], self.error[index] if np.ndim(self.error) else self.error, self.u)

    __radd__, __rmul__ = __add__, __mul__


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Rounded) else x


def _error(x: Any) -> Any:
    return x.error if isinstance(x, Rounded) else 0.0
