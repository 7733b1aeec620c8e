"""Linear maps, norms, activations, feed-forward networks, dropout and embedding."""

from __future__ import annotations

from typing import Any, Literal

from ..algebra import activations, norms
from ..algebra.arrays import Array, compute_dtype
from ..algebra.grid import check_broadcast
from ..algebra.int8 import Int8Weight, Weight
from ..algebra.scatter import sum_at
from ..autodiff.recorded import Recorded
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import check_floating, check_same_device
from . import check
from .composite import composite
from .elementary import Examined, elementary
from .int8 import linear_int8
from .operation import Step


def linear(x: Array, w: Weight, b: Array | None = None) -> Array:
    """x w + b, as in the papers: x (..., n), w (n, m), b (m,); returns (..., m).

    With an ``Int8Weight`` x is rounded to int8 too, as ``quantize_weight`` says. Raises ValueError for shapes that
    do not fit, TypeError if gradients are recorded for an ``Int8Weight``.

    >>> import numpy as np, mha_core as mha
    >>> mha.linear(np.ones((1, 2)), np.eye(2), np.ones(2))
    array([[2., 2.]])
    """
    return linear_int8(x, w, b) if type(w) is Int8Weight else _linear(x, w, b)


def _check_linear(x: Array, w: Array, b: Array | None) -> None:
    check.ndim("x", x, 1, "(..., features)")
    if w.ndim != 2 or w.shape[0] != x.shape[-1]:
        raise ValueError(f"w has shape {tuple(w.shape)}; expected (n, m) with n = {x.shape[-1]}, the features of x")
    check.shape("b", b, (w.shape[1],), "(m,)")


_linear = elementary(
    "linear",
    ("x", "w", "b"),
    norms.linear,
    optional=["b"],
    vjp=norms.linear_vjp,
    validate=_check_linear,
    shape=lambda x, w, b: (*x.shape[:-1], w.shape[1]),
)


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis; weight and bias are (d,).

    The variance is the population variance. Half precision is computed in float32.

    Source: Ba, Kiros and Hinton 2016, equation 4. Raises ValueError for shapes that do not fit.

    >>> import numpy as np, mha_core as mha
    >>> mha.layer_norm(np.asarray([1.0, 3.0]), eps=0.0)
    array([-1.,  1.])
    """
    return _layer_norm(x, weight, bias, eps=check.at_least_zero("eps", eps))


def _check_norm(x: Array, *parameters: Array | None) -> None:
    check.ndim("x", x, 1, "(..., features)")
    first = next((parameter for parameter in parameters if parameter is not None), None)
    if first is not None and first.ndim == 1:
        check.features("x", x, first.shape[0], "d_model")
    for name, parameter in zip(("weight", "bias"), parameters, strict=False):
        check.shape(name, parameter, tuple(x.shape[-1:]), "the last axis of x")


_NORM = ("x", "weight", "bias")
_layer_norm = elementary(
    "layer_norm", _NORM, norms.layer_norm, optional=_NORM[1:], vjp=norms.layer_norm_vjp, validate=_check_norm
)


def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-5) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; weight is (d,).

    Source: Zhang and Sennrich 2019, equation 4. Raises ValueError for shapes that do not fit.

    >>> import numpy as np, mha_core as mha
    >>> mha.rms_norm(np.asarray([3.0, 3.0]), eps=0.0)
    array([1., 1.])
    """
    return _rms_norm(x, weight, eps=check.at_least_zero("eps", eps))


_rms_norm = elementary("rms_norm", _NORM[:2], norms.rms_norm, optional=_NORM[1:2], vjp=norms.rms_norm_vjp, validate=_check_norm)


def gelu(x: Array, *, approximate: Literal["none", "tanh"] = "none") -> Array:
    """x Phi(x), with Phi the cumulative distribution function of the normal distribution, or its tanh approximation.

    Source: Hendrycks and Gimpel 2016, section 2. Raises ValueError for another approximation.

    >>> import numpy as np, mha_core as mha
    >>> mha.gelu(np.asarray([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}; expected 'none' or 'tanh'")
    return _gelu(x, approximate=approximate)


def relu(x: Array) -> Array:
    """max(x, 0).

    >>> import numpy as np, mha_core as mha
    >>> mha.relu(np.asarray([-1.0, 2.0]))
    array([0., 2.])
    """
    return _relu(x)


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)).

    Source: Hendrycks and Gimpel 2016, section 4.

    >>> import numpy as np, mha_core as mha
    >>> mha.silu(np.asarray([0.0, 1.0])).round(4)
    array([0.    , 0.7311])
    """
    return _silu(x)


_gelu = elementary("gelu", ("x",), activations.gelu, vjp=activations.gelu_vjp)
_relu = elementary("relu", ("x",), activations.relu, vjp=activations.relu_vjp)
_silu = elementary("silu", ("x",), activations.silu, vjp=activations.silu_vjp)

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh"), "silu": silu}


def check_activation(name: str) -> str:
    """Return the name of an activation. Raises ValueError unless it is relu, gelu, gelu_tanh or silu."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    return name


def activate(name: str, x: Array) -> Array:
    """Apply an activation by name."""
    return ACTIVATIONS[check_activation(name)](x)


def feed_forward(
    x: Array,
    w_1: Weight,
    b_1: Array | None,
    w_2: Weight,
    b_2: Array | None,
    *,
    activation: str = "relu",
    w_g: Weight | None = None,
    b_g: Array | None = None,
) -> Array:
    """f(x w_1 + b_1) w_2 + b_2, or with a gate (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2.

    x (..., d_model), w_1 and w_g (d_model, d_ff), w_2 (d_ff, d_model). ``activation``: relu, gelu, gelu_tanh or silu.

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6, for the gate.

    >>> import numpy as np, mha_core as mha
    >>> mha.feed_forward(np.asarray([[1.0, -1.0]]), np.eye(2), None, np.eye(2), None)
    array([[1., 0.]])
    """
    gate = {} if w_g is None and b_g is None else {"w_g": w_g, "b_g": b_g}
    return _feed_forward(x, w_1, b_1, w_2, b_2, activation=activation, **gate)


def _examine_feed_forward(*arrays: Any, activation: str, w_g: Weight | None = None, b_g: Array | None = None) -> Examined:
    x, w_1, b_1, w_2, b_2 = arrays
    check_activation(activation)
    backend = check_floating(x=x, w_1=w_1, w_2=w_2, optional={"b_1": b_1, "b_2": b_2, "w_g": w_g, "b_g": b_g})
    check.ndim("x", x, 1, "(..., features)")
    if w_1.ndim != 2:
        raise ValueError(f"w_1 has shape {tuple(w_1.shape)}; expected ({x.shape[-1]}, d_ff), a row for each feature of x")
    check.features("x", x, w_1.shape[0], "d_model")
    if w_2.ndim != 2 or w_2.shape[0] != w_1.shape[1]:
        raise ValueError(f"w_2 has shape {tuple(w_2.shape)}; expected ({w_1.shape[1]}, d_out)")
    check.shape("b_1", b_1, (w_1.shape[1],), "a number for each column of w_1")
    check.shape("b_2", b_2, (w_2.shape[1],), "a number for each column of w_2")
    check.shape("w_g", w_g, tuple(w_1.shape), "the shape of w_1")
    check.shape("b_g", b_g, (w_1.shape[1],), "a number for each column of w_g")
    if w_g is None and b_g is not None:
        raise ValueError("b_g is given without w_g; a gate needs its weights")
    return Examined(
        backend,
        _feed_forward_algebra,
        shape=(*x.shape[:-1], w_2.shape[1]),
        features=() if w_g is None else ("gate",),
        settings=[("activation", activation)],
    )


def _feed_forward_algebra(*arrays: Any, activation: str, w_g: Weight | None = None, b_g: Array | None = None) -> Array:
    x, w_1, b_1, w_2, b_2 = arrays
    hidden = activate(activation, linear(x, w_1, b_1))
    return linear(hidden if w_g is None else hidden * linear(x, w_g, b_g), w_2, b_2)


def _named_feed_forward(*arrays: Any, w_g: Weight | None = None, b_g: Array | None = None, **options: Any) -> dict[str, Any]:
    return dict(zip(("x", "w_1", "b_1", "w_2", "b_2", "w_g", "b_g"), (*arrays, w_g, b_g), strict=True))


_feed_forward = composite("feed_forward", _named_feed_forward, _examine_feed_forward)


def dropout(x: Array, keep: Array, *, rate: float) -> Array:
    """x / (1 - rate) where ``keep`` is true, 0 elsewhere.

    ``keep`` is boolean and broadcasts to x. The caller chooses it, so that results are the same on every backend.

    Source: Srivastava et al. 2014, section 10 (scaled while training). Raises TypeError for a keep that is not boolean,
    ValueError for a rate outside [0, 1).

    >>> import numpy as np, mha_core as mha
    >>> mha.dropout(np.ones(2), np.asarray([True, False]), rate=0.5)
    array([2., 0.])
    """
    return _dropout(x, keep, rate=rate)


@Step
def _dropout(x: Array, keep: Array, *, rate: float) -> Array:
    backend = check_floating(x=x)
    check_same_device(x, [("keep", keep)], first="x")
    if keep.dtype != backend.xp.bool:
        raise TypeError(f"keep has dtype {keep.dtype}; expected a boolean array, True where x is kept")
    check_broadcast("keep", keep.shape, x.shape, "the shape of x")
    check.below_one("rate", rate)
    xp = backend.xp
    wide = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)  # 1 - rate has no exact form in half precision
    kept = xp.astype(wide / (1 - rate), x.dtype, copy=False)
    return xp.where(keep, kept, 0)


def embedding(ids: Array, table: Array) -> Array:
    """Rows of a table: ids (...) integers, table (vocabulary, d); returns (..., d).

    Raises TypeError for ids that are not integers. Ids outside the table are left to the library: NumPy and torch raise, but
    count negative ids from the end.

    >>> import numpy as np, mha_core as mha
    >>> mha.embedding(np.asarray([1, 0]), np.eye(2))
    array([[0., 1.],
           [1., 0.]])
    """
    return _embedding(ids, table)


@Step
def _embedding(ids: Array, table: Array) -> Array:
    backend = check_floating(table=table)
    xp = backend.xp
    check_same_device(table, [("ids", ids)], first="table")
    if not xp.isdtype(ids.dtype, "integral"):
        raise TypeError(f"ids has dtype {ids.dtype}; expected integers")
    if table.ndim != 2:
        raise ValueError(f"table has shape {tuple(table.shape)}; expected (vocabulary, d)")
    if isinstance(table, Recorded):
        assert backend.plain is not None
        rows = _rows(backend.plain, table.value, ids)
        return backend.xp.record(rows, [table.node], lambda d: [_embedding_vjp(d, ids, num_rows=table.shape[0])], [ids])
    return _rows(backend, table, ids)


def _rows(backend: LoadedBackend, table: Array, ids: Array) -> Array:
    rows = backend.xp.take(table, backend.xp.reshape(ids, (-1,)), axis=0)
    return backend.xp.reshape(rows, (*ids.shape, table.shape[1]))


def _examine_embedding_vjp(d_out: Array, ids: Array, *, num_rows: int) -> Examined:
    backend = check_floating(d_out=d_out)

    def rows(d_out: Array, ids: Array, *, num_rows: int) -> Array:
        xp = backend.xp
        return sum_at(xp, xp.reshape(d_out, (-1, d_out.shape[-1])), xp.reshape(ids, (-1,)), num_rows)

    return Examined(backend, rows, (num_rows, d_out.shape[-1]), settings=[("num_rows", num_rows)])


_embedding_vjp = composite(
    "embedding_vjp",
    lambda d_out, ids, **options: {"d_out": d_out, "ids": ids},
    _examine_embedding_vjp,
    smaller_operations=False,
)
