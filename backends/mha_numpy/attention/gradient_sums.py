"""The arrays that the tasks of attention's gradients write to, and the gradients that they add up to."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

import numpy as np

from mha_core.plugin import (
    ArrayBias,
    AttentionGradients,
    AttentionProblem,
    AttentionState,
    gradient_by_distance,
    places_of_block,
    sum_to,
)

from .bias_gradients import BiasGradient, DistanceGradient, FunctionGradient, MatrixGradient
from .gradient_tiles import write_delta
from .masks_and_biases import Matrix
from .subproblem import Subproblem


class Sums:
    """Gradients of a problem in its compute dtype.

    Tasks for different spans of keys write to different keys, but add to the same queries: each span has its own sums for them.
    """

    def __init__(self, p: AttentionProblem, wanted: Set[str]) -> None:
        self.p, self.wanted, self.dtype = p, wanted, np.dtype(p.compute_dtype)
        self.query: list[np.ndarray] = []
        self.key, self.value = (self._like(x) for x in (p.key, p.value))
        if p.structure.key_lengths is not None:  # keys behind them are in no subproblem
            self.key.fill(0)
            self.value.fill(0)
        self.bias: list[np.ndarray] = []
        self.distances: list[DistanceGradient] = []
        self.functions: list[FunctionGradient] = []

    def _like(self, x: Any) -> np.ndarray:
        """Return an uninitialised array for all batch elements, laid out like x if it has as many."""
        batch = self.p.batch_shape
        return (
            np.empty_like(x, dtype=self.dtype, subok=False)
            if x.shape[:-3] == batch
            else np.empty((*batch, *x.shape[-3:]), self.dtype)
        )

    @property
    def bias_is_shared(self) -> bool:
        """True if several heads or batch elements add to the same numbers of an array bias, so that one task computes them."""
        if "bias" not in self.wanted or not isinstance(self.p.bias, ArrayBias):
            return False
        return math.prod(self.p.bias.array.shape[:-2]) != math.prod(self.p.rows_shape[:-1])

    def of_span(self) -> AttentionProblem:
        """Return the problem with sums in place of its arrays, with new ones where spans of keys add to the same numbers."""
        p = self.p
        self.query.append(self._like(p.query))
        bias = p.bias
        if "bias" in self.wanted and isinstance(bias, ArrayBias):
            shape = bias.array.shape
            if not self.bias or shape[-1:] in ((), (1,)):
                self.bias.append(np.zeros(shape, dtype=self.dtype))
            bias = ArrayBias(self.bias[-1])
        return p.with_arrays(self.query[-1], self.key, self.value, bias=bias)

    def bias_of(self, subproblem: Subproblem, gradient: Subproblem) -> BiasGradient | None:
        """Return what adds up the gradient of a subproblem's bias; None if it is not wanted."""
        if "bias" not in self.wanted:
            return None
        if subproblem.function is not None:
            assert self.p.bias is not None
            of_function = FunctionGradient(self.p.bias.sum(np), self.p.grid(range(1), range(1)))
            self.functions.append(of_function)
            return of_function
        if isinstance(gradient.bias, Matrix):
            return MatrixGradient(gradient.bias.array)
        key_heads, group, length = subproblem.query.shape[1:4]
        total = DistanceGradient(
            np.zeros((key_heads, group, length + subproblem.num_keys - 1), self.dtype), subproblem.num_keys
        )
        self.distances.append(total)
        return total

    def gradients(self) -> AttentionGradients:
        """Return what the sums add up to, in the shapes and dtypes of the problem's arrays."""
        p, totals = self.p, {}
        if "query" in self.wanted:
            totals["query"] = _total(self.query, p.query)
        for name, total, x in (("key", self.key, p.key), ("value", self.value, p.value)):
            if name in self.wanted:
                totals[name] = _total([total], x)
        if "bias" in self.wanted:
            totals["bias"] = self._of_bias()
        return AttentionGradients(**totals)

    def _of_bias(self) -> Any:
        p = self.p
        if isinstance(p.bias, ArrayBias):
            return _total(self.bias, p.bias.array)
        if not self.functions:
            return self._of_table()
        assert p.bias is not None
        total = p.bias.sum(np)
        for each in self.functions:
            total.add(each.grid, each.sums.sums)  # type: ignore[attr-defined]
        return total.whole(p.device)

    def _of_table(self) -> Any:
        """Return the gradient of a table of relative biases, from its sums by distance."""
        p, (key_heads, group) = self.p, (self.p.key.shape[-3], self.p.num_groups)
        num_keys, length = len(p.structure.keys), p.query.shape[-2]
        total = np.zeros((key_heads, group, length + num_keys - 1), dtype=self.dtype)
        for each in self.distances:
            rows = range(each.sums.shape[2] - each.num_keys + 1)
            total[..., places_of_block(num_keys, rows, range(each.num_keys))] += each.sums
        return gradient_by_distance(p, total.reshape(key_heads * group, -1))


def _total(sums: list[np.ndarray], like: Any) -> np.ndarray:
    """Return the sum of arrays, summed over the axes along which ``like`` broadcasts, in its dtype."""
    total: Any = sums[0]
    for each in sums[1:]:
        total += each
    total = sum_to(np, total, like.shape)
    return total.astype(like.dtype, copy=False)


def of_sink(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any) -> np.ndarray:
    """-e^(sink - lse) delta, summed over queries and batch: (H,)."""
    out, lse, sink = (np.asarray(x) for x in (state.out, state.lse, p.sink))
    dtype = np.dtype(p.compute_dtype)
    wide = sink.astype(dtype)[:, None]
    delta = np.empty(lse.shape, dtype=dtype)
    write_delta(d_out.astype(dtype), out, lse, wide, d_lse, delta)
    seen = lse != -math.inf
    weights = np.exp(np.subtract(wide, lse, where=seen, out=np.zeros_like(lse)))
    terms = np.multiply(weights, delta, where=seen, out=np.zeros_like(delta))
    axes = tuple(axis for axis in range(terms.ndim) if axis != terms.ndim - 2)
    return (-np.add.reduce(terms, axis=axes)).astype(sink.dtype, copy=False)
