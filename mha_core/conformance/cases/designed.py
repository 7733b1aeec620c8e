"""Attention problems from the rows of a covering design, each also as full arrays for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from .attention_axes import BANDS, BATCHES, OFFSETS, batch_shape
from .covering import Row
from .features import KeyBias, relative_buckets
from .masks import Make

Option = Callable[[Make], Any]
"""Makes an option of a call, from a function that makes arrays of the backend."""
Rounding = Callable[[np.ndarray], np.ndarray]
"""Rounds numbers to a dtype of the backend, and returns them in float64."""
_SPREAD = {"plain": 1.0, "wide": 12.0, "huge": 300.0, "tiny": 1e-6}
"""Factors of the query: "wide" scores need the maximum, the exponentials of "huge" ones overflow without it."""


@dataclass
class Designed:
    """One problem: arrays in NumPy, options for a call, and the same options for the oracle."""

    row: Row
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: Option | None
    visible: np.ndarray
    """The mask as an array that broadcasts to (..., H, L, S)."""
    bias: Option | None
    whole_bias: np.ndarray | None
    """The bias as an array that broadcasts likewise."""
    sink: np.ndarray | None
    offset: Any

    def options(self, make: Make, wide: Make) -> dict[str, Any]:
        """Return the options of the call; ``wide`` makes arrays of float32, also beside half precision."""
        offset = make(self.offset) if isinstance(self.offset, np.ndarray) else self.offset
        added = wide if self.row["wide"] else make
        given = {
            "mask": None if self.mask is None else self.mask(make),
            "bias": None if self.bias is None else self.bias(added),
            "sink": None if self.sink is None else added(self.sink),
            "softcap": self.row["softcap"],
            "scale": self.row["scale"],
            "query_offset": offset,
        }
        return {name: option for name, option in given.items() if option is not None}

    @property
    def oracle(self) -> dict[str, Any]:
        """The same options as the oracle takes them. A bias of -inf masks, although a key that it masks may not hold NaN."""
        bias, allowed = self.whole_bias, self.visible
        if bias is not None:
            allowed, bias = allowed & (bias > -np.inf), np.where(bias > -np.inf, bias, 0.0)
        given = {"allowed": allowed, "bias": bias, "sink": self.sink}
        return given | {"softcap": self.row["softcap"], "scale": self.row["scale"]}

    def unseen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which keys and which values no query may see, in the shapes of key and value without the last axis."""
        heads, queries, keys = self.query.shape[-3], self.query.shape[-2], self.key.shape[-2]
        shape = (*batch_shape(self.row), heads, queries, keys)
        seen: np.ndarray = np.any(np.broadcast_to(self.visible, shape), axis=-2)
        seen = np.any(seen.reshape(*seen.shape[:-2], self.row["kv_heads"], self.row["groups"], keys), axis=-2)
        if self.row["layout"] == "expanded":  # what one element of the batch sees is memory of all
            seen = np.broadcast_to(np.any(seen, axis=tuple(range(seen.ndim - 2)), keepdims=True), seen.shape)
        return ~_reduced(seen, self.key.shape[:-1]), ~_reduced(seen, self.value.shape[:-1])

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.row.items())


def _reduced(seen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return where any element is true that an array of this shape would be broadcast to."""
    seen = np.any(seen, axis=tuple(range(seen.ndim - len(shape))))
    found: np.ndarray = np.any(
        seen, axis=tuple(at for at, size in enumerate(shape) if size == 1 < seen.shape[at]), keepdims=True
    )
    return found


def designed(row: Row, rng: np.random.Generator, rounded: Rounding, wide: Rounding) -> Designed:
    """Draw the numbers of a problem whose axes have the values of ``row``.

    ``rounded`` rounds to the dtype of the arguments, ``wide`` to that of the scores, which biases and sinks may have too.
    """
    added = wide if row["wide"] else rounded
    of_query, of_key, of_value = BATCHES[row["batch"]]
    kv_heads, heads = row["kv_heads"], row["kv_heads"] * row["groups"]
    value_dim = row["head_dim"] if row["value_dim"] == "the same" else row["value_dim"]
    expanded = row["layout"] == "expanded"

    def normal(batch: tuple[int, ...], *shape: int) -> np.ndarray:
        if expanded:  # all elements of the batch are one array
            return np.broadcast_to(rng.normal(size=shape), (*batch, *shape)).copy()
        return rng.normal(size=(*batch, *shape))

    offset = OFFSETS[row["offset"]]
    if offset == "array":
        offset = rng.integers(-3, 4, size=batch_shape(row))
    mask, visible = _mask(row, offset, rng)
    bias, whole_bias = _bias(row, offset, rng, added, wide)
    sink = None if row["sink"] == "none" else added(rng.normal(size=heads) + (20 if row["sink"] == "large" else 0))
    return Designed(
        row=row,
        query=rounded(normal(of_query, heads, row["queries"], row["head_dim"]) * _SPREAD[row["scores"]]),
        key=rounded(normal(of_key, kv_heads, row["keys"], row["head_dim"])),
        value=rounded(normal(of_value, kv_heads, row["keys"], value_dim)),
        mask=mask,
        visible=visible,
        bias=bias,
        whole_bias=whole_bias,
        sink=sink,
        offset=offset,
    )


def _positions(row: Row, offset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of queries (..., 1, L, 1) and of keys (S)."""
    q = np.arange(row["queries"])[:, None]
    offset = 0 if offset is None else offset
    return (q + (offset[..., None, None, None] if isinstance(offset, np.ndarray) else offset)), np.arange(row["keys"])


def _mask(row: Row, offset: Any, rng: np.random.Generator) -> tuple[Option | None, np.ndarray]:
    """Return all masks of a row joined by ``&``, as an option and as an array."""
    q, k = _positions(row, offset)
    batch, heads = batch_shape(row), row["kv_heads"] * row["groups"]
    parts: list[tuple[Option, np.ndarray]] = []
    band = BANDS[row["band"]]
    if band is not None:
        low, high = band
        inside = (k - q >= (-np.inf if low is None else low)) & (k - q <= (np.inf if high is None else high))
        of_band = mha.causal() if band == (None, 0) else _window(low, high)
        parts.append((lambda make: of_band, inside))
    if row["lengths"] != "none":
        parts.append(_lengths(row, batch, rng))
    if row["packed"] != "none":
        parts.append(_packed(row, rng))
    if row["array"] != "none":
        given = rng.random(_array_shape(row["array"], batch, heads, row["queries"], row["keys"])) < 0.6
        if row["array"] == "tiles":
            _clear_tiles(given)
        parts.append((lambda make: mha.array_mask(make(given)), given))
    if row["term"] != "none":
        parts.append(_term(row, q, k, batch, rng))
    if not parts:
        return None, np.ones((1, 1), dtype=bool)
    visible = parts[0][1]
    for _, array in parts[1:]:
        visible = visible & array
    return lambda make: _joined([part(make) for part, _ in parts]), visible


def _joined(masks: list[Any]) -> Any:
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined & mask
    return joined


def _window(low: int | None, high: int | None) -> Any:
    """Return a window whose limits may lie on one side of the diagonal only."""
    return mha.window(None if low is None else -low, high)


def _lengths(row: Row, batch: tuple[int, ...], rng: np.random.Generator) -> tuple[Option, np.ndarray]:
    k, keys = np.arange(row["keys"]), row["keys"]
    if row["lengths"] == "int":
        n = int(rng.integers(0, keys + 1))
        return lambda make: mha.key_lengths(n), k < n
    lengths = rng.integers(min(1, keys), keys + 1, size=batch)
    lengths.flat[0] = keys
    if row["lengths"] == "array with 0":
        lengths.flat[-1] = 0
    return lambda make: mha.key_lengths(make(lengths)), k < lengths[..., None, None, None]


def _packed(row: Row, rng: np.random.Generator) -> tuple[Option, np.ndarray]:
    length = row["queries"]
    count = {"few": 3, "with empty ones": 7, "many": 290}[row["packed"]]
    cuts = np.sort(rng.integers(0, length + 1, size=count - 1))
    if row["packed"] == "with empty ones":
        cuts[: count // 2] = cuts[0]
    lengths = [int(n) for n in np.diff(np.concatenate([[0], cuts, [length]]))]
    ids = np.repeat(np.arange(count), lengths)
    return lambda make: mha.packed(lengths), ids[:, None] == ids[None, :]


def _array_shape(kind: str, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> tuple[int, ...]:
    return {
        "scores": (queries, keys),
        "tiles": (queries, keys),
        "keys": (1, keys),
        "heads": (heads, queries, keys),
        "batch": (*batch, 1, 1, keys),
        "-inf": (queries, keys),
    }[kind]


def _clear_tiles(allowed: np.ndarray) -> None:
    """Mask queries and keys at the start, in the middle and at the end, and one whole tile off the diagonal."""
    for axis in (0, 1):
        size = allowed.shape[axis]
        for part in (slice(0, size // 7), slice(size // 2, size // 2 + size // 9), slice(size - size // 8, size)):
            allowed[(slice(None), part)[:: 1 if axis else -1]] = False
    allowed[: allowed.shape[0] // 2, allowed.shape[1] // 2 :] = False


def _term(
    row: Row, q: np.ndarray, k: np.ndarray, batch: tuple[int, ...], rng: np.random.Generator
) -> tuple[Option, np.ndarray]:
    if row["term"] == "or":
        return lambda make: mha.causal() | mha.prefix(5), (k <= q) | (k < 5)
    if row["term"] == "not":
        return lambda make: ~mha.window(3, 1), ~((k >= q - 3) & (k <= q + 1))
    if row["term"] == "chunks":
        return lambda make: mha.chunks(37), q // 37 == k // 37
    of_query, of_key = (rng.integers(0, 3, size=(*batch, n)) for n in (row["queries"], row["keys"]))
    return (
        lambda make: mha.segments(make(of_query), make(of_key)),
        of_query[..., None, :, None] == of_key[..., None, None, :],
    )


def _bias(
    row: Row, offset: Any, rng: np.random.Generator, added: Rounding, wide: Rounding
) -> tuple[Option | None, np.ndarray | None]:
    kind, heads = row["bias"], row["kv_heads"] * row["groups"]
    q, k = _positions(row, offset)
    if kind == "none":
        return None, None
    if kind == "term":
        return lambda make: KeyBias(0.01), 0.01 * k
    if kind == "alibi":
        return lambda make: mha.alibi(heads), -wide(_slopes(heads))[:, None, None] * np.abs(q - k)
    if kind.startswith("relative"):
        both = kind == "relative"
        table = added(rng.normal(size=(8, heads)))
        whole = table[relative_buckets(k - q, bidirectional=both)]  # (..., L, S, H), or (..., 1, L, S, H) by element
        whole = np.moveaxis(whole[..., 0, :, :, :] if whole.ndim > 3 else whole, -1, -3)
        return lambda make: mha.relative_bias(make(table), bidirectional=both, max_distance=5), whole
    x = rng.normal(size=_array_shape(kind, batch_shape(row), heads, row["queries"], row["keys"]))
    if kind == "-inf":
        x[rng.random(x.shape) < 0.2] = -np.inf
    x = added(x)
    return lambda make: make(x), x


def _slopes(heads: int) -> np.ndarray:
    """Return ALiBi's slopes: 2^(-8 i / n) for a power of two, and then the odd i of the series for twice as many."""
    n = 1 << (heads.bit_length() - 1)
    slopes: np.ndarray = 2.0 ** np.concatenate([-8 * np.arange(1, n + 1) / n, -4 * np.arange(1, 2 * (heads - n), 2) / n])
    return slopes
