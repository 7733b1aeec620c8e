"""The gradients of a linear map, a feed-forward layer and an embedding, in float64; and the step of AdamW."""

import numpy

from . import arrays as xp
from .arrays import ours
from .attention import calls


def rows(x):
    """(..., n) -> (rows, n), in float64."""
    return numpy.asarray(x, dtype="float64").reshape(-1, x.shape[-1])


def linear_vjp(x, w, b, d_out, *, wanted):
    """x (..., n), w (n, m), b (m,) or None, d_out (..., m) -> d w^T, x^T d, sum d; None if not wanted.

    It consists of functions of the namespace, so it can be traced.
    """
    calls.append("linear_vjp")
    w_rows, x_rows, d = (xp.reshape(xp.astype(a, xp.float64), (-1, a.shape[-1])) for a in (w, x, d_out))
    found = {
        "x": lambda: xp.reshape(xp.matmul(d, xp.matrix_transpose(w_rows)), x.shape),
        "w": lambda: xp.matmul(xp.matrix_transpose(x_rows), d),
        "b": lambda: xp.sum(d, axis=0),
    }
    return tuple(xp.astype(found[name](), w.dtype) if name in wanted else None for name in found)


def sigmoid(z):
    return numpy.exp(-numpy.logaddexp(0, -z))


FUNCTIONS = {"relu": lambda z: numpy.maximum(z, 0), "silu": lambda z: z * sigmoid(z)}
SLOPES = {"relu": lambda z: z > 0, "silu": lambda z: sigmoid(z) * (1 + z * sigmoid(-z))}


def supports(call):
    name = call.option("activation")
    return None if name in FUNCTIONS else f"knows {' and '.join(FUNCTIONS)}, not {name}"


def feed_forward_vjp(x, w_1, b_1, w_2, b_2, *, activation, wanted, w_g=None, b_g=None):
    """x (..., n), w_1 (n, k), w_2 (k, m) -> f(x w_1 + b_1) w_2 + b_2 (..., m), and its pullback."""
    calls.append("feed_forward_vjp")
    assert w_g is None and b_g is None, "a gate was not declared"
    inputs, first, second = map(rows, (x, w_1, w_2))
    z = inputs @ first + (0 if b_1 is None else numpy.asarray(b_1))
    hidden = FUNCTIONS[activation](z)
    out = hidden @ second + (0 if b_2 is None else numpy.asarray(b_2))

    def pullback(d_out):
        """d_out (..., m) -> the gradients that are wanted, by name."""
        calls.append("pullback")
        d = rows(d_out)
        dz = d @ second.T * SLOPES[activation](z)
        found = {"x": (dz @ first.T).reshape(x.shape), "w_1": inputs.T @ dz, "b_1": dz.sum(axis=0)}
        found |= {"w_2": hidden.T @ d, "b_2": d.sum(axis=0)}
        return {name: ours(found[name].astype(x.dtype)) for name in wanted}

    return ours(out.astype(x.dtype).reshape(*x.shape[:-1], w_2.shape[1])), pullback


def embedding_vjp(d_out, ids, *, num_rows):
    """d_out (..., d), ids (...) -> the gradient of the table (num_rows, d); ids below 0 count from the end."""
    calls.append("embedding_vjp")
    table = numpy.zeros((num_rows, d_out.shape[-1]))
    numpy.add.at(table, numpy.asarray(ids).reshape(-1), rows(d_out))
    return ours(table.astype(d_out.dtype))


def adamw(w, gradient, m, v, *, learning_rate, beta_1, beta_2, eps, weight_decay, step, gradient_scale=1.0):
    """Four arrays of one shape -> the new w, m and v; the last two are written to (Loshchilov and Hutter 2019, algorithm 2)."""
    calls.append("adamw")
    means, squares = numpy.asarray(m), numpy.asarray(v)
    g = numpy.asarray(gradient, dtype=m.dtype) * numpy.asarray(gradient_scale, dtype=m.dtype)
    means[...] = beta_1 * means + (1 - beta_1) * g
    squares[...] = beta_2 * squares + (1 - beta_2) * g * g
    moved = learning_rate * means / (1 - beta_1 ** (step + 1)) / (numpy.sqrt(squares / (1 - beta_2 ** (step + 1))) + eps)
    kept = (1 - learning_rate * weight_decay) * numpy.asarray(w, dtype=m.dtype)
    return ours(numpy.asarray(kept - moved).astype(w.dtype)), m, v
