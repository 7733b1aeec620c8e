"""The derivatives of array-API functions, by name.

A rule receives the namespace and the arguments of a function. It returns the result, and for each argument that may be an
array, in order, a function from the gradient of the result to that of the argument; None where there is no derivative. A
gradient may still have the shape to which its argument was broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..algebra.arrays import Namespace, device_of
from .shapes import SHAPES, Rule, axis_of, is_array_like


def _unary(slope: Callable[..., Any]) -> Callable[[str], Rule]:
    """Return a rule of a function of one number, from ``slope(xp, x, y)``, its derivative at x, where it is y."""

    def of(name: str) -> Rule:
        def rule(xp: Namespace, x: Any) -> Any:
            y = getattr(xp, name)(x)
            return y, [lambda d: d * slope(xp, x, y)]

        return rule

    return of


_SLOPES: dict[str, Callable[..., Any]] = {
    "negative": lambda xp, x, y: -1,
    "positive": lambda xp, x, y: 1,
    "abs": lambda xp, x, y: xp.sign(x),
    "square": lambda xp, x, y: 2 * x,
    "sqrt": lambda xp, x, y: 0.5 / y,
    "reciprocal": lambda xp, x, y: -y * y,
    "exp": lambda xp, x, y: y,
    "expm1": lambda xp, x, y: y + 1,
    "log": lambda xp, x, y: 1 / x,
    "log1p": lambda xp, x, y: 1 / (1 + x),
    "log2": lambda xp, x, y: 1 / (x * math.log(2)),
    "log10": lambda xp, x, y: 1 / (x * math.log(10)),
    "sin": lambda xp, x, y: xp.cos(x),
    "cos": lambda xp, x, y: -xp.sin(x),
    "tan": lambda xp, x, y: 1 + y * y,
    "asin": lambda xp, x, y: 1 / xp.sqrt(1 - x * x),
    "acos": lambda xp, x, y: -1 / xp.sqrt(1 - x * x),
    "atan": lambda xp, x, y: 1 / (1 + x * x),
    "sinh": lambda xp, x, y: xp.cosh(x),
    "cosh": lambda xp, x, y: xp.sinh(x),
    "tanh": lambda xp, x, y: 1 - y * y,
    "asinh": lambda xp, x, y: 1 / xp.sqrt(x * x + 1),
    "acosh": lambda xp, x, y: 1 / xp.sqrt(x * x - 1),
    "atanh": lambda xp, x, y: 1 / (1 - x * x),
}


def _add(xp: Namespace, x: Any, y: Any) -> Any:
    return x + y, [lambda d: d, lambda d: d]


def _subtract(xp: Namespace, x: Any, y: Any) -> Any:
    return x - y, [lambda d: d, lambda d: -d]


def _multiply(xp: Namespace, x: Any, y: Any) -> Any:
    return x * y, [lambda d: d * y, lambda d: d * x]


def _divide(xp: Namespace, x: Any, y: Any) -> Any:
    z = x / y
    return z, [lambda d: d / y, lambda d: -d * z / y]


def _pow(xp: Namespace, x: Any, y: Any) -> Any:
    z = x**y

    def of_base(d: Any) -> Any:
        return (
            d * xp.where(xp.asarray(y == 0), 0, y * x ** xp.where(xp.asarray(y == 0), 1, y - 1))
            if is_array_like(y)
            else (d * 0 if y == 0 else d * y * x ** (y - 1))
        )

    def of_exponent(d: Any) -> Any:
        base = x if is_array_like(x) else xp.full_like(y, x)
        return d * xp.where(base > 0, z * xp.log(xp.where(base > 0, base, 1)), 0)

    return z, [of_base, of_exponent]


def _extreme(name: str) -> Rule:
    """maximum and minimum: equal arguments share the gradient."""

    def rule(xp: Namespace, x: Any, y: Any) -> Any:
        z = getattr(xp, name)(x, y)

        def share(d: Any, argument: Any) -> Any:
            return xp.where(argument == z, xp.where(x == y, 0.5 * d, d), 0)

        return z, [lambda d: share(d, x), lambda d: share(d, y)]

    return rule


def _atan2(xp: Namespace, y: Any, x: Any) -> Any:
    square = x * x + y * y
    return xp.atan2(y, x), [lambda d: d * x / square, lambda d: -d * y / square]


def _hypot(xp: Namespace, x: Any, y: Any) -> Any:
    z = xp.hypot(x, y)
    return z, [lambda d: d * x / z, lambda d: d * y / z]


def _logaddexp(xp: Namespace, x: Any, y: Any) -> Any:
    z = xp.logaddexp(x, y)
    return z, [lambda d: d * xp.exp(x - z), lambda d: d * xp.exp(y - z)]


def _where(xp: Namespace, condition: Any, x: Any, y: Any) -> Any:
    return xp.where(condition, x, y), [None, lambda d: xp.where(condition, d, 0), lambda d: xp.where(condition, 0, d)]


def _clip(xp: Namespace, x: Any, min: Any = None, max: Any = None) -> Any:
    """Where min > max, the result is max."""
    under = None if min is None else xp.asarray(x < min)
    over = None if max is None else xp.asarray((x if min is None else xp.maximum(x, min)) > max)

    def without(d: Any, hidden: Any) -> Any:
        return d if hidden is None else xp.where(hidden, 0, d)

    pulls = [
        lambda d: without(without(d, under), over),
        lambda d: without(xp.where(under, d, 0), over),
        lambda d: xp.where(over, d, 0),
    ]
    return xp.clip(x, min, max), pulls


# reductions


def _restored(xp: Namespace, d: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """Return a reduced array with the reduced axes, of length 1."""
    if keepdims or axis is None:
        return d if keepdims else xp.reshape(d, (1,) * x.ndim)
    return xp.reshape(d, tuple(1 if at in _axes(x, axis) else size for at, size in enumerate(x.shape)))


def _axes(x: Any, axis: Any) -> set[int]:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return {at % x.ndim for at in axes if x.ndim}


def _sum(xp: Namespace, x: Any, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    y = xp.sum(x, axis=axis, dtype=dtype, keepdims=keepdims)
    return y, _unless_whole(xp, y, lambda d: xp.broadcast_to(_restored(xp, d, x, axis, keepdims), x.shape))


def _mean(xp: Namespace, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    y = xp.mean(x, axis=axis, keepdims=keepdims)
    count = math.prod(x.shape[at] for at in _axes(x, axis))
    return y, [lambda d: xp.broadcast_to(_restored(xp, d, x, axis, keepdims) / max(count, 1), x.shape)]


def _top(name: str) -> Rule:
    """max and min: equal elements share the gradient."""

    def rule(xp: Namespace, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        y = getattr(xp, name)(x, axis=axis, keepdims=keepdims)

        def pull(d: Any) -> Any:
            chosen = xp.astype(x == _restored(xp, y, x, axis, keepdims), x.dtype)
            count = xp.sum(chosen, axis=axis, keepdims=True) if axis is not None else xp.sum(chosen)
            return chosen * (_restored(xp, d, x, axis, keepdims) / count)

        return y, [pull]

    return rule


def _prod(xp: Namespace, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The product of the others, without division: x may be 0."""
    axes = _axes(x, axis)
    order = sorted(range(x.ndim), key=lambda at: (at in axes, at))
    sizes = [x.shape[at] for at in order]

    def pull(d: Any) -> Any:
        front = sizes[: x.ndim - len(axes)]
        flat = xp.reshape(xp.permute_dims(x, tuple(order)), (*front, math.prod(sizes[len(front) :])))
        cofactors = xp.where(xp.eye(flat.shape[-1], dtype=xp.bool, device=device_of(x)), 1, flat[..., None, :])
        each = xp.reshape(xp.prod(cofactors, axis=-1), tuple(sizes))
        return _restored(xp, d, x, axis, keepdims) * xp.permute_dims(each, tuple(map(order.index, range(x.ndim))))

    return xp.prod(x, axis=axis, keepdims=keepdims), [pull]


def _cumulative_sum(xp: Namespace, x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    at = axis_of("cumulative_sum", x.ndim, axis)
    y = xp.cumulative_sum(x, axis=at, dtype=dtype, include_initial=include_initial)

    def pull(d: Any) -> Any:
        d = d[(*(slice(None),) * at, slice(1, None), ...)] if include_initial else d
        return xp.flip(xp.cumulative_sum(xp.flip(d, axis=at), axis=at), axis=at)

    return y, _unless_whole(xp, y, pull)


def _unless_whole(xp: Namespace, y: Any, pull: Callable[[Any], Any]) -> Any:
    """Return the function of a gradient for a result with ``dtype=``: None for integers, whose derivative is 0."""
    return [pull] if xp.isdtype(y.dtype, ("real floating", "complex floating")) else None


# products


def _matmul(xp: Namespace, x: Any, y: Any) -> Any:
    wide_x, wide_y = (x[None, :] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)

    def with_axes(d: Any) -> Any:
        d = d if y.ndim > 1 else d[..., None]
        return d if x.ndim > 1 else d[..., None, :]

    def of_x(d: Any) -> Any:
        d = xp.matmul(with_axes(d), xp.matrix_transpose(wide_y))
        return d[..., 0, :] if x.ndim == 1 else d

    def of_y(d: Any) -> Any:
        d, rows = with_axes(d), wide_x
        if wide_y.ndim == 2:  # one product for the whole batch
            d, rows = (xp.reshape(z, (-1, z.shape[-1])) for z in (d, rows))
        d = xp.matmul(xp.matrix_transpose(rows), d)
        return d[..., 0] if y.ndim == 1 else d

    return xp.matmul(x, y), [of_x, of_y]


RULES: dict[str, Rule] = {
    **{name: _unary(slope)(name) for name, slope in _SLOPES.items()},
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "pow": _pow,
    "matmul": _matmul,
    **{name: _extreme(name) for name in ("maximum", "minimum")},
    "atan2": _atan2,
    "hypot": _hypot,
    "logaddexp": _logaddexp,
    "where": _where,
    "clip": _clip,
    "sum": _sum,
    "mean": _mean,
    "prod": _prod,
    "cumulative_sum": _cumulative_sum,
    **{name: _top(name) for name in ("max", "min")},
    **SHAPES,
}
