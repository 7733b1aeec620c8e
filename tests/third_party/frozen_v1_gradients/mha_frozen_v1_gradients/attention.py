"""Attention over the keys of a band and within the key lengths, and its gradients: all scores at once, in float64."""

import numpy

from mha_core.plugin import AttentionGradients, AttentionState

from .arrays import ours

calls = []
"""A log of what was called, for the tests."""


def supports(call):
    """The dtype by its name in the standard, and at most 2^16 scores for each head."""
    rows, keys = call.shape("query")[-2], call.shape("key")[-2]
    if call.dtype_name not in ("float32", "float64"):
        return f"takes float32 and float64, not {call.dtype_name}"
    return "computes all scores at once, which are too many" if rows * keys > 2**16 else None


def visible(problem):
    """Whether query i sees key j: (rows, keys), or with key lengths (..., 1, rows, keys)."""
    rows, keys = problem.query.shape[-2], problem.key.shape[-2]
    i, j = numpy.arange(rows)[:, None], numpy.arange(keys)
    low, high = problem.structure.band
    seen = numpy.ones((rows, keys), dtype=bool)
    if low is not None:
        seen &= j - i >= low
    if high is not None:
        seen &= j - i <= high
    lengths = problem.structure.key_lengths
    return seen if lengths is None else seen & (j < numpy.asarray(lengths)[..., None, None, None])


def wide(x):
    return numpy.asarray(x, dtype="float64")


def scores(query, key, scale, seen):
    """scale q k^T (..., H, L, S), -inf for what is not seen."""
    return numpy.where(seen, wide(query) @ wide(key).mT * scale, -numpy.inf)


def attend(query, key, value, scale, seen):
    """softmax(scores) v (..., H, L, E), and log sum e^scores (..., H, L); 0 and -inf for a query that sees no key."""
    with numpy.errstate(all="ignore"):
        s = scores(query, key, scale, seen)
        top = numpy.max(s, axis=-1, keepdims=True, initial=-numpy.inf)
        weights = numpy.exp(s - numpy.where(top == -numpy.inf, 0, top))
        total = numpy.sum(weights, axis=-1, keepdims=True)
        out = numpy.where(total == 0, 0, weights @ wide(value) / total)
        lse = numpy.where(total == 0, -numpy.inf, top + numpy.log(total))[..., 0]
        return AttentionState(ours(out.astype(query.dtype)), ours(lse.astype(query.dtype)))


def attention(problem):
    """AttentionProblem -> AttentionState."""
    calls.append("attention")
    return attend(problem.query, problem.key, problem.value, problem.scale, visible(problem))


def prepare(problem):
    """The same for all problems of this shape and band; None with key lengths, which are an array of this problem."""
    if problem.structure.key_lengths is not None:
        return None
    scale, seen = problem.scale, visible(problem)

    def prepared(query, key, value, sink):
        assert sink is None, "a sink was not declared"
        calls.append("prepared")
        return attend(query, key, value, scale, seen)

    return prepared


def attention_vjp(problem, state, d_out, d_lse, wanted):
    """d_out (..., H, L, E) and d_lse (..., H, L) or None -> AttentionGradients.

    With the weights w = e^(scores - lse), dv = w^T do and ds = w (do v^T - do . out + dl); a weight of 0 leaves out NaN.
    """
    calls.append("attention_vjp")
    query, key, value, out, lse = map(wide, (problem.query, problem.key, problem.value, *state))
    with numpy.errstate(all="ignore"):
        blind = (lse == -numpy.inf)[..., None]
        d = numpy.where(blind, 0, wide(d_out))
        w = numpy.exp(scores(query, key, problem.scale, visible(problem)) - numpy.where(blind, 0, lse[..., None]))
        ds = d @ value.mT - numpy.sum(out * d, axis=-1, keepdims=True)
        ds = ds if d_lse is None else ds + wide(d_lse)[..., None]
        ds = numpy.where(w == 0, 0, w * ds * problem.scale)
        found = {"query": lambda: ds @ key, "key": lambda: ds.mT @ query, "value": lambda: w.mT @ d}
        return AttentionGradients(**{name: ours(found[name]().astype(problem.query.dtype)) for name in wanted})
