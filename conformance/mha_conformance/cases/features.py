"""Calls of attention that use one or several of the features that a kernel may declare.

``plain`` makes a call without any; ``with_features`` adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.plugin import Grid
from mha_core.shared import STATE_FEATURES, Bias, contract

from .masks import Make

BATCH, HEADS = 2, 4


@dataclass(frozen=True)
class AttentionCall:
    """Arrays and options of one call of attention, with the same options as full arrays for the oracle."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Callable[[Make], Any]] = field(default_factory=dict)
    """The options by name, each as a function that makes it from arrays of a backend."""
    oracle: dict[str, Any] = field(default_factory=dict)
    """The same options as the oracle takes them."""
    floats: dict[str, np.ndarray] = field(default_factory=dict)
    """Floating arrays among the options, by name. They are rounded with query, key and value."""

    @property
    def num_keys(self) -> int:
        return int(self.key.shape[-2])

    def masked(self, mask: Callable[[Make], Any], allowed: np.ndarray) -> AttentionCall:
        """Return the call with one more mask, combined with the present one by ``&``."""
        before, known = self.options.get("mask"), self.oracle.get("allowed")
        joined = mask if before is None else lambda make: before(make) & mask(make)
        return replace(
            self,
            options={**self.options, "mask": joined},
            oracle={**self.oracle, "allowed": allowed if known is None else known & allowed},
        )

    def given(self, name: str, option: Callable[[Make], Any], whole: Any) -> AttentionCall:
        """Return the call with one more option; ``whole`` is its value for the oracle."""
        return replace(self, options={**self.options, name: option}, oracle={**self.oracle, name: whole})


def plain(rng: np.random.Generator, length: int, width: int, *, times: float = 1.0) -> AttentionCall:
    """Return a call without options: as many queries as keys, values as wide as heads, scores multiplied by ``times``."""
    query, key, value = (rng.normal(size=(BATCH, HEADS, length, width)) for _ in range(3))
    return AttentionCall(query * times, key, value)


@dataclass(frozen=True, eq=False)
class KeyBias(Bias):
    """A bias of a type that core does not know: slope times the index of the key."""

    slope: float

    def block(self, grid: Grid) -> Any:
        return self.slope * grid.xp.astype(grid.key_index, grid.dtype)


def _positions(call: AttentionCall) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(call.query.shape[-2])[:, None], np.arange(call.num_keys)[None, :]


def _causal(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    q, k = _positions(call)
    return call.masked(lambda make: mha.causal(), k <= q)


def _window(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    q, k = _positions(call)
    return call.masked(lambda make: mha.window(2, 1), (k >= q - 2) & (k <= q + 1))


def _key_lengths(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    _, k = _positions(call)
    lengths = np.asarray([call.num_keys - 2, call.num_keys])
    return call.masked(lambda make: mha.key_lengths(make(lengths)), k < lengths[:, None, None, None])


def _packed(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    lengths = [2, call.num_keys - 3, 1]
    ids = np.repeat(np.arange(3), lengths)
    return call.masked(lambda make: mha.packed(lengths), ids[:, None] == ids[None, :])


def _array_mask(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    allowed = rng.random((BATCH, 1, call.query.shape[-2], call.num_keys)) < 0.6
    allowed[..., 0, :] = False  # a row that sees nothing
    return call.masked(lambda make: mha.array_mask(make(allowed)), allowed)


def _mask(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    q, k = _positions(call)
    return call.masked(lambda make: mha.causal() | mha.prefix(3), (k <= q) | (k < 3))


def _array(name: str, shape: Callable[[AttentionCall], tuple[int, ...]]) -> Any:
    def change(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
        x = rng.normal(size=shape(call))
        return replace(call, floats={**call.floats, name: x})

    return change


def _alibi(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    q, k = _positions(call)
    slopes = 2.0 ** (-8 * np.arange(1, HEADS + 1) / HEADS)
    return call.given("bias", lambda make: mha.alibi(HEADS), -slopes[:, None, None] * np.abs(q - k))


def _relative_bias(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return replace(call, floats={**call.floats, "table": rng.normal(size=(8, HEADS))})


def _bias_term(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    _, k = _positions(call)
    return call.given("bias", lambda make: KeyBias(0.5), 0.5 * k)


def _softcap(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return call.given("softcap", lambda make: 0.5, 0.5)


def _grouped_query(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return replace(call, key=call.key[:, ::2], value=call.value[:, ::2])


def _value_dim(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return replace(call, value=np.concatenate([call.value, call.value[..., :8] + 1], axis=-1))


def _broadcast(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return replace(call, key=call.key[:1], value=call.value[:1])


def _unchanged(call: AttentionCall, rng: np.random.Generator) -> AttentionCall:
    return call


FEATURES: dict[str, Callable[[AttentionCall, np.random.Generator], AttentionCall]] = {
    "causal": _causal,
    "window": _window,
    "key_lengths": _key_lengths,
    "packed": _packed,
    "array_mask": _array_mask,
    "mask": _mask,
    "bias": _array("bias", lambda call: (HEADS, call.query.shape[-2], call.num_keys)),
    "alibi": _alibi,
    "relative_bias": _relative_bias,
    "bias_term": _bias_term,
    "softcap": _softcap,
    "sink": _array("sink", lambda call: (HEADS,)),
    "grouped_query": _grouped_query,
    "value_dim": _value_dim,
    "broadcast": _broadcast,
    "lse": _unchanged,  # the operation that is called decides whether the log-sum-exp is returned
}
"""Functions that turn a plain call into one that uses this feature and no other."""
ALL_FEATURES = contract.FEATURES["attention"] | STATE_FEATURES
"""All features that core can name. No call here uses ``STATE_FEATURES``: the arrays decide whether a gradient is recorded."""
_EXCLUSIVE = [
    {"bias", "alibi", "relative_bias", "bias_term"},  # a call has one bias
    {"causal", "window"},  # together they are a window
]


def go_together(features: Iterable[str]) -> bool:
    """Return whether one call can use all of these features."""
    return not any(len(some & set(features)) > 1 for some in _EXCLUSIVE)


def with_features(call: AttentionCall, features: Iterable[str], rng: np.random.Generator) -> AttentionCall:
    """Return the call with these features, added in the order of ``FEATURES``."""
    for name in FEATURES:
        if name in set(features):
            call = FEATURES[name](call, rng)
    return call


def rounded(call: AttentionCall, to: Callable[[np.ndarray], np.ndarray]) -> AttentionCall:
    """Return the call with every floating array rounded by ``to``, and its options made from the rounded arrays."""
    query, key, value = to(call.query), to(call.key), to(call.value)
    call = replace(call, query=query, key=key, value=value, floats={name: to(x) for name, x in call.floats.items()})
    for name, x in call.floats.items():
        call = _relative(call, x) if name == "table" else call.given(name, partial(_made, x), x)
    return call


def _made(x: np.ndarray, make: Make) -> Any:
    return make(x)


def _relative(call: AttentionCall, table: np.ndarray) -> AttentionCall:
    """Add a relative bias: 8 buckets over both directions, maximal distance 5 (Raffel et al. 2020).

    The four buckets of a direction are for distance 0, distance 1, and two logarithmic ranges.
    """
    q, k = _positions(call)
    whole = np.moveaxis(table[relative_buckets(k - q, bidirectional=True)], -1, 0)
    return call.given("bias", lambda make: mha.relative_bias(make(table), bidirectional=True, max_distance=5), whole)


def relative_buckets(distance: np.ndarray, *, bidirectional: bool) -> np.ndarray:
    """Return the bucket, of 8, of each distance key position - query position, with a maximal distance of 5.

    Of the n buckets of a direction, n / 2 hold one distance each, and the others logarithmic ranges: bucket
    n / 2 + floor(n / 2 * log(2 d / n) / log(2 * 5 / n)), at most n - 1 (Raffel et al. 2020, section 2.1).
    """
    n = 4 if bidirectional else 8
    back = np.minimum(np.abs(distance) if bidirectional else np.maximum(-distance, 0), 5)
    exact = n // 2
    ratio = np.log(np.maximum(back, exact) / exact) / np.log(5 / exact)
    far = np.minimum(n - 1, exact + (exact * ratio).astype(int))
    return np.where(back < exact, back, far) + (np.where(distance > 0, n, 0) if bidirectional else 0)
