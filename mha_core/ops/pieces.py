"""The pieces that layers are made of: each is validated, dispatched and done."""

from __future__ import annotations

from typing import Any, Literal

from ..algebra import activations, norms, positions
from ..algebra.arrays import Array, Namespace
from ..dispatch.selection import backend_of, backend_without_arrays
from . import check
from .dispatch import run


def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    """x w + b, as in the papers: x (..., n), w (n, m), b (m,); gives (..., m).

    Raises ValueError for shapes that do not fit.

    >>> import numpy as np, mha_core as mha
    >>> mha.linear(np.ones((1, 2)), np.eye(2), np.ones(2))
    array([[2., 2.]])
    """
    backend = check.arrays(x=x, w=w, b=b)
    check.ndim("x", x, 1, "(..., features)")
    if w.ndim != 2 or w.shape[0] != x.shape[-1]:
        raise ValueError(f"w has shape {tuple(w.shape)}; expected (n, m) with n = {x.shape[-1]}, the features of x")
    check.shape("b", b, (w.shape[1],), "(m,)")
    return run(backend, "linear", _linear, x, w, b)


def _linear(xp: Namespace, x: Array, w: Array, b: Array | None) -> Array:
    y = xp.matmul(x, w)
    return y if b is None else y + b


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis; weight and bias are (d,).

    The variance is that of the population. Half precision is computed in float32.

    Source: Ba, Kiros and Hinton 2016, equation 4. Raises ValueError for shapes that do not fit.

    >>> import numpy as np, mha_core as mha
    >>> mha.layer_norm(np.asarray([1.0, 3.0]), eps=0.0)
    array([-1.,  1.])
    """
    backend = check.arrays(x=x, weight=weight, bias=bias)
    check.ndim("x", x, 1, "(..., features)")
    check.shape("weight", weight, tuple(x.shape[-1:]), "the last axis of x")
    check.shape("bias", bias, tuple(x.shape[-1:]), "the last axis of x")
    return run(backend, "layer_norm", norms.layer_norm, x, weight, bias, eps=check.number("eps", eps))


def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-5) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; weight is (d,).

    Source: Zhang and Sennrich 2019, equation 4. Raises ValueError for shapes that do not fit.

    >>> import numpy as np, mha_core as mha
    >>> mha.rms_norm(np.asarray([3.0, 3.0]), eps=0.0)
    array([1., 1.])
    """
    backend = check.arrays(x=x, weight=weight)
    check.ndim("x", x, 1, "(..., features)")
    check.shape("weight", weight, tuple(x.shape[-1:]), "the last axis of x")
    return run(backend, "rms_norm", norms.rms_norm, x, weight, eps=check.number("eps", eps))


def gelu(x: Array, *, approximate: Literal["none", "tanh"] = "none") -> Array:
    """x Phi(x), with Phi the distribution function of the normal, or its tanh approximation.

    Source: Hendrycks and Gimpel 2016, section 2. Raises ValueError for another approximation.

    >>> import numpy as np, mha_core as mha
    >>> mha.gelu(np.asarray([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}; expected 'none' or 'tanh'")
    return run(check.arrays(x=x), "gelu", activations.gelu, x, approximate=approximate)


def relu(x: Array) -> Array:
    """max(x, 0).

    >>> import numpy as np, mha_core as mha
    >>> mha.relu(np.asarray([-1.0, 2.0]))
    array([0., 2.])
    """
    return run(check.arrays(x=x), "relu", activations.relu, x)


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)).

    Source: Hendrycks and Gimpel 2016, section 4.

    >>> import numpy as np, mha_core as mha
    >>> mha.silu(np.asarray([0.0, 1.0])).round(4)
    array([0.    , 0.7311])
    """
    return run(check.arrays(x=x), "silu", activations.silu, x)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh"), "silu": silu}


def activate(name: str, x: Array) -> Array:
    """An activation by name. Raises ValueError for any other than relu, gelu, gelu_tanh and silu."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name](x)


def feed_forward(x: Array, w_1: Array, b_1: Array | None, w_2: Array, b_2: Array | None, *, activation: str = "relu") -> Array:
    """f(x w_1 + b_1) w_2 + b_2: x (..., d_model), w_1 (d_model, d_ff), w_2 (d_ff, d_model).

    ``activation``: relu, gelu, gelu_tanh or silu. Source: Vaswani et al. 2017, equation 2.

    >>> import numpy as np, mha_core as mha
    >>> mha.feed_forward(np.asarray([[1.0, -1.0]]), np.eye(2), None, np.eye(2), None)
    array([[1., 0.]])
    """
    return linear(activate(activation, linear(x, w_1, b_1)), w_2, b_2)


def embedding(ids: Array, table: Array) -> Array:
    """Rows of a table: ids (...) integers, table (vocabulary, d); gives (..., d).

    Raises TypeError for ids that are no integers. Ids outside the table are the library's to judge.

    >>> import numpy as np, mha_core as mha
    >>> mha.embedding(np.asarray([1, 0]), np.eye(2))
    array([[0., 1.],
           [1., 0.]])
    """
    backend = check.arrays(table=table)
    xp = backend.xp
    backend_of({"table": table, "ids": ids})
    check.same_device("ids", ids, "table", table)
    if not xp.isdtype(ids.dtype, "integral"):
        raise TypeError(f"ids has dtype {ids.dtype}; expected integers")
    if table.ndim != 2:
        raise ValueError(f"table has shape {tuple(table.shape)}; expected (vocabulary, d)")
    rows = xp.take(table, xp.reshape(ids, (-1,)), axis=0)
    return xp.reshape(rows, (*ids.shape, table.shape[1]))


def sinusoidal_positions(
    length: int, d_model: int, *, backend: str | None = None, dtype: Any = None, device: Any = None
) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos of the same: (length, d_model).

    ``dtype`` is the backend's, its float32 by default. Source: Vaswani et al. 2017, section 3.5.
    Raises ValueError for negative sizes.

    >>> import mha_core as mha
    >>> mha.sinusoidal_positions(2, 4).round(2)
    array([[0.  , 1.  , 0.  , 1.  ],
           [0.84, 0.54, 0.01, 1.  ]], dtype=float32)
    """
    for name, size in (("length", length), ("d_model", d_model)):
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"{name} is {size!r}; expected an int of at least 0")
    xp = backend_without_arrays(backend).xp
    dtype = xp.float32 if dtype is None else dtype
    return positions.sinusoidal_positions(xp, length, d_model, dtype=dtype, device=device)
