"""Gradients of attention over whole arrays in NumPy, in steps that ``wrong_gradients`` and ``right_twins`` change."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from mha_conformance.oracle.attention_gradients import by_bucket, summed_to
from mha_core.algebra.attention_vjp import AttentionGradients


class WholeGradients:
    """The gradients of one call of a kernel of ``attention_vjp``. A step is a property or a method."""

    dtype = np.float64

    def __init__(self, problem, state, d_out, d_lse, wanted):
        self.problem, self.state, self.wanted = problem, state, wanted
        self.given_d_out, self.given_d_lse = d_out, d_lse
        self.query, key, value = (np.asarray(x, dtype=self.dtype) for x in (problem.query, problem.key, problem.value))
        self.key, self.value = (np.repeat(x, problem.num_groups, axis=-3) for x in (key, value))
        self.scale = problem.scale

    @cached_property
    def shape(self):
        return (*self.problem.rows_shape, self.key.shape[-2])

    @cached_property
    def grid(self):
        return self.problem.grid(range(self.shape[-2]), self.problem.structure.keys)

    @cached_property
    def allowed(self):
        mask = self.problem.mask
        return np.broadcast_to(True if mask is None else mask.block(self.grid), self.shape)

    @cached_property
    def raw(self):
        return self.scale * (self.query @ np.swapaxes(self.key, -1, -2))

    @cached_property
    def capped(self):
        c = self.problem.softcap
        return self.raw if c is None else c * np.tanh(self.raw / c)

    @cached_property
    def slope(self):
        c = self.problem.softcap
        return np.ones(self.raw.shape) if c is None else 1 - (self.capped / c) ** 2

    @cached_property
    def scores(self):
        return np.where(self.allowed, self.biased[0], -np.inf)

    @cached_property
    def biased(self):
        """The scores with the bias, and a function from their gradient to those of the scores before, and of the bias."""
        if self.problem.bias is None:
            return self.capped, lambda d: (d, None)
        whole = np.broadcast_to(self.capped, self.shape)
        return self.problem.bias.pullback(whole, replace(self.grid, dtype=self.dtype), of_arrays="bias" in self.wanted)

    @cached_property
    def blind(self):
        return ~np.any(self.scores > -np.inf, axis=-1)

    @cached_property
    def lse(self):
        lse = np.asarray(self.state.lse, dtype=self.dtype)
        return np.where(lse == -np.inf, 0, lse)

    @cached_property
    def weights(self):
        return np.exp(self.scores - self.lse[..., None])

    @cached_property
    def d_out(self):
        return np.where(self.blind[..., None], 0, np.asarray(self.given_d_out, dtype=self.dtype))

    @cached_property
    def d_lse(self):
        if self.given_d_lse is None:
            return np.zeros(self.shape[:-1], self.dtype)
        return np.where(self.state.lse == -np.inf, 0, np.asarray(self.given_d_lse, dtype=self.dtype))

    @cached_property
    def out(self):
        return np.asarray(self.state.out, dtype=self.dtype)

    @cached_property
    def delta(self):
        return np.sum(self.d_out * self.out, axis=-1) - self.d_lse

    @cached_property
    def kept(self):
        dropout = self.problem.dropout
        return 1.0 if dropout is None else dropout.kept(self.grid, self.problem.rows_shape) / self.dtype(1 - dropout.rate)

    @cached_property
    def d_weights(self):
        return self.kept * (self.d_out @ np.swapaxes(self.value, -1, -2))

    @cached_property
    def ds(self):
        return self.weights * (self.d_weights - self.delta[..., None])

    @cached_property
    def d_capped(self):
        return self.biased[1](self.ds)[0]

    @cached_property
    def da(self):
        return self.d_capped * self.slope * self.scale

    def product(self, x, y):
        return x @ y

    def of_query(self):
        return self.summed(self.product(self.da, self.key), self.problem.query.shape)

    def of_key(self):
        return self.by_key_head(self.product(np.swapaxes(self.da, -1, -2), self.query), self.problem.key.shape)

    def of_value(self):
        return self.by_key_head(
            self.product(np.swapaxes(self.weights * self.kept, -1, -2), self.d_out), self.problem.value.shape
        )

    def of_bias(self):
        bias = self.problem.bias
        if bias.feature == "score_function":
            total = bias.sum(np)
            total.add(replace(self.grid, dtype=self.dtype), self.biased[1](self.of_pairs)[1])
            return total.whole(None)
        if hasattr(bias, "table"):
            return by_bucket(self.of_pairs, self.buckets, bias.table.shape)
        whole, keys = np.zeros((*self.shape[:-1], self.total_keys)), self.problem.structure.keys
        whole[..., keys.start : keys.stop] = self.of_pairs
        return self.summed(whole, bias.array.shape)

    @cached_property
    def of_pairs(self):
        """The gradients of all pairs that the bias' is summed from."""
        return self.ds

    @cached_property
    def total_keys(self):
        size = self.problem.bias.array.shape[-1]
        return size if size != 1 else self.problem.structure.keys.stop

    @cached_property
    def distance(self):
        return self.grid.key_index - self.grid.query_position

    @cached_property
    def buckets(self):
        bias = self.problem.bias
        distance = np.clip(self.distance, -bias.max_distance, bias.max_distance)
        return np.vectorize(bias.bucket, otypes=[int])(distance)

    def of_sink(self):
        return summed_to(-self.sink_terms.sum(axis=-1), self.problem.sink.shape)

    @cached_property
    def sink_weights(self):
        return np.exp(np.asarray(self.problem.sink, dtype=self.dtype)[:, None] - self.lse)

    @cached_property
    def sink_terms(self):
        return self.sink_weights * self.delta

    def summed(self, x, shape):
        return summed_to(x, shape)

    def by_key_head(self, x, shape):
        grouped = x.reshape(*x.shape[:-3], shape[-3], self.problem.num_groups, *x.shape[-2:])
        return self.summed(self.over_groups(grouped), shape)

    def over_groups(self, x):
        return x.sum(axis=-3)

    def gradients(self):
        p = self.problem
        bias = getattr(p.bias, "array", getattr(p.bias, "table", None))
        like = {"query": p.query, "key": p.key, "value": p.value, "bias": bias, "sink": p.sink}
        exact = {name: getattr(self, f"of_{name}")() for name in like if name in self.wanted}
        return AttentionGradients(**{name: x if type(x) is tuple else x.astype(like[name].dtype) for name, x in exact.items()})
