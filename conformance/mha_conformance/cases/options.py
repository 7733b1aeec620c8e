"""The options of attention (mask, bias, sink, offset, softcap, scale) from the rows of a covering design.

Each option is made twice: for a call on a backend, and as full arrays for the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.plugin import Grid
from mha_core.shared import Bias

from ..oracle.attention import Floats
from ..oracle.dropout import kept_by_seed
from ..oracle.expressions import Expression
from ..oracle.score_function import ScoreFunction
from . import masks
from .attention_axes import FAR, batch_shape
from .function_masks import Pairs, function_mask
from .functions import Draw, as_function, indices_of
from .kinds import Row
from .masks import AnyMask

Arrays = Mapping[str, Any]
"""Arrays of a backend by name."""
Make = Callable[[Arrays], Any]
"""Makes an option of a call from the arrays of the problem."""


@dataclass(frozen=True, eq=False)
class KeyBias(Bias):
    """A bias of a type that core does not know: slope times the index of the key."""

    slope: float

    def block(self, grid: Grid) -> Any:
        return self.slope * grid.xp.astype(grid.key_index, grid.dtype)


@dataclass
class Options:
    """The options of one call."""

    row: Row
    floats: dict[str, np.ndarray] = field(default_factory=dict)
    """Floating arrays by name: ``bias``, ``table`` of a relative bias, ``sink``, and those of a score function."""
    others: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays of booleans and integers by name: masks, lengths, segments, offsets."""
    masks: list[tuple[Make, np.ndarray]] = field(default_factory=list)
    """The masks that are combined by ``&``, each as an option and as an array that broadcasts to (..., H, L, S)."""
    bias: Make | None = None
    whole_bias: Callable[[Mapping[str, Floats], str], Floats] | None = None
    """Returns the bias as an array that broadcasts likewise, from the floating arrays and the dtype of the scores."""
    buckets: np.ndarray | None = None
    """The buckets of a relative bias, (L, S), or (..., 1, L, S) with an offset for each element of the batch."""
    score: Callable[[Mapping[str, Floats]], ScoreFunction] | None = None
    """Returns the score function of the oracle, from the floating arrays."""
    of_score: tuple[str, ...] = ()
    """The names of all arrays of the score function, in order."""
    functions: list[str] = field(default_factory=list)
    """The functions that were drawn, as text."""
    dropped: float = 0.25
    """The share of weights that dropout drops."""
    seed: int | None = None
    """The seed of dropout; None: an array says which weights are kept."""
    offset: Any = None

    def add_mask(self, mask: AnyMask) -> None:
        """Combine a mask with those before by ``&``."""
        arrays, make = mask.by_name(f"array of mask {len(self.masks)},")
        self.others |= arrays
        self.masks.append((make, mask.allowed))

    def add_array_bias(self, x: np.ndarray) -> None:
        """Add a bias that is an array."""
        self.floats["bias"] = x
        self.bias, self.whole_bias = (lambda arrays: arrays["bias"]), (lambda floats, wide: floats["bias"])

    def add_score_function(
        self, expression: Expression, arrays: Mapping[str, np.ndarray], indices: Mapping[str, np.ndarray]
    ) -> None:
        """Put an expression of the score, of these arrays and of the indices of all pairs in the place of the scores."""
        self.functions.append(f"score function {expression}")
        self.of_score = tuple(arrays)
        floats = {name: x for name, x in arrays.items() if x.dtype.kind == "f"}
        others = {name: x for name, x in arrays.items() if name not in floats}
        self.floats |= floats
        self.others |= others
        function = as_function(expression, [*arrays], "score")
        self.bias = lambda made: mha.score_function(function, [made[name] for name in self.of_score])
        self.score = lambda made: ScoreFunction(expression, {**indices, **others}, {name: made[name] for name in floats})

    @property
    def visible(self) -> np.ndarray:
        """The whole mask as an array."""
        visible = np.ones((1, 1), dtype=bool)
        for _, array in self.masks:
            visible = visible & array
        return visible

    def make(self, arrays: Arrays) -> dict[str, Any]:
        """Return the options of the call."""
        made = [make(arrays) for make, _ in self.masks]
        mask = reduce(and_, made) if made else None
        every = {
            "mask": mask,
            "bias": None if self.bias is None else self.bias(arrays),
            "sink": arrays.get("sink"),
            "softcap": self.row["softcap"],
            "scale": self.row["scale"],
            "query_offset": arrays.get("query_offset", self.offset),
            "weight_dropout": self._dropout(arrays) if "keep" in arrays else None,
        }
        return {name: option for name, option in every.items() if option is not None}

    def _dropout(self, arrays: Arrays) -> Any:
        keep = {"keep": arrays["keep"]} if self.seed is None else {"seed": self.seed}
        return mha.weight_dropout(self.dropped, **keep)

    @property
    def learned(self) -> frozenset[str]:
        """The floating arrays of the bias, which have gradients."""
        return frozenset({"bias", "table", *self.of_score} & self.floats.keys())

    def oracle(self, floats: Mapping[str, Floats], wide: str) -> dict[str, Any]:
        """Return the same options as the oracle takes them. A bias of -inf masks, although what it masks may not hold NaN."""
        allowed, bias = self.visible, None if self.whole_bias is None else self.whole_bias(floats, wide)
        if bias is not None:
            allowed, bias = allowed & (bias > -np.inf), np.where(bias > -np.inf, bias, 0.0)
        kept = {"kept_weights": self.others["keep"] / (1 - self.dropped)} if "keep" in self.others else {}
        settings = {"softcap": self.row["softcap"], "scale": self.row["scale"], "sink": floats.get("sink")}
        score = {} if self.score is None else {"score": self.score(floats)}
        return {"allowed": allowed, "bias": bias, **settings, **kept, **score}


def options_of(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> Options:
    """Return the options of a row: ``structure`` draws what is no array, such as packed lengths, and ``rng`` the arrays."""
    shape = {"array": batch_shape(row), "array of one": (1,) * len(batch_shape(row))}.get(row["offset"])
    made, offset = Options(row), row["offset"]
    if shape is not None:
        furthest = row.get("furthest offset", (4, 4, 70, 70_000)[structure.integers(4)])
        offset = made.others["query_offset"] = rng.integers(row.get("lowest offset", -3), furthest, size=shape)
    elif offset != "none":
        made.offset = offset
    q = np.arange(row["queries"])[:, None]
    q = q + (offset[..., None, None, None] if isinstance(offset, np.ndarray) else made.offset or 0)
    k = np.arange(row["keys"])
    _add_masks(made, q, k, structure, rng)
    _add_bias(made, q, k, structure, rng)
    if row.get("weight_dropout", "none") != "none":
        made.dropped = row["weight_dropout"]
        of_scores = _array_shape("whole", row)
        if row.get("keep") == "by a seed":
            made.seed = int(structure.integers(2**32))
            places = (math.prod(of_scores[:-2]), *of_scores[-2:])
            made.others["keep"] = kept_by_seed(places, made.dropped, made.seed).reshape(of_scores)
        else:
            made.others["keep"] = rng.random(of_scores) >= made.dropped
    for name, x in made.others.items():
        made.others[name] = x.astype(row.get("integers", "int64")) if x.dtype.kind == "i" else x
    if row["sink"] != "none":
        made.floats["sink"] = rng.normal(size=heads_of(row)) + (20 if row["sink"] == "large" else 0)
    return made


def heads_of(row: Row) -> int:
    """Return the number of query heads."""
    heads: int = row["kv_heads"] * row["groups"]
    return heads


def _add_masks(made: Options, q: np.ndarray, k: np.ndarray, structure: np.random.Generator, rng: np.random.Generator) -> None:
    row, add = made.row, made.add_mask
    if row["band"] != "none":
        low, high = (None, 0) if row["band"] == "causal" else row["band"]
        if structure.random() < 0.8:  # limits within the number of keys cut more often
            low, high = (limit if limit is None else int(math.fmod(limit, max(1, row["keys"]))) for limit in (low, high))
        add(masks.band(q, k, *_near_the_keys(low, high, made.offset)))
    if row["lengths"] != "none":
        add(masks.key_lengths(k, _lengths(row, structure, rng)))
    if row["packed"] != "none":
        add(masks.packed(_packed(row, structure)))
    if row["array"] != "none":
        allowed = rng.random(_array_shape(row["array"], row)) < 0.6
        allowed[tuple(slice(0, 1) for _ in allowed.shape)] = True  # of few pairs, else often none
        if row["array"] == "tiles":
            _clear_tiles(allowed)
        elif row["array"] == "without the first query":
            allowed[..., :1, :] = False
        add(masks.array(allowed))
    if row["term"] == "or":
        add(masks.band(q, k, None, 0) | masks.prefix(k, int(structure.integers(1, max(2, min(20, row["keys"] // 2))))))
    elif row["term"] == "not":
        add(~masks.band(q, k, -int(structure.integers(0, 40)), int(structure.integers(0, 40))))
    elif row["term"] == "chunks":
        far = made.offset if made.offset is not None and made.offset >= FAR else 0  # as wide as the keys are far
        add(masks.chunks(q, k, far + int(structure.integers(1, 80))))
    elif row["term"] == "segments":
        of_queries, of_keys = (rng.integers(0, 3, size=(*batch_shape(row), row[name])) for name in ("queries", "keys"))
        of_keys[..., :1] = of_queries[..., :1] if row["queries"] else 0
        add(masks.segments(of_queries, of_keys))
    elif row["term"] == "expression":
        add(masks.random_mask(structure, rng, q, k, batch_shape(row), heads_of(row)))
    elif row["term"].startswith("function"):
        pairs = Pairs(q, k, batch_shape(row), heads_of(row), made.offset or 0)
        mask, expression = function_mask(row["term"], pairs, structure, rng)
        made.functions.append(f"mask function {expression}")
        add(mask)


def _near_the_keys(low: int | None, high: int | None, offset: int | None) -> tuple[int | None, int | None]:
    """Return the limits of a band; if all keys are far behind or ahead, that limit is moved to where they are."""
    far = offset if offset is not None and abs(offset) >= FAR else 0
    return None if low is None else low - max(far, 0), None if high is None else high - min(far, 0)


def _lengths(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> int | np.ndarray:
    keys, kind, shape = row["keys"], row["lengths"], batch_shape(row)
    if kind == "int":
        return int(structure.integers(0, keys + 1))
    lengths = rng.integers(min(1, keys), keys + 1, size=(1,) * len(shape) if kind == "array of one" else shape)
    if kind != "array of one":
        lengths.flat[0] = keys
    if kind == "array with 0" and (lengths.size > 1 or structure.random() < 0.2):
        lengths.flat[-1] = 0
    return lengths


def _packed(row: Row, structure: np.random.Generator) -> list[int]:
    length = row["queries"]
    count = {"few": int(structure.integers(2, 5)), "with empty ones": 7, "many": 290}[row["packed"]]
    few = row["packed"] == "few" and length > 2  # of several sequences, one so long that no window is as wide
    low, high = (1, length // 3 + 1) if few else (0, length)
    cuts = np.sort(structure.integers(low, high, endpoint=True, size=count - 1))
    if row["packed"] == "with empty ones":
        cuts[: count // 2] = cuts[0]
    return [int(n) for n in np.diff(np.concatenate([[0], cuts, [length]]))]


def _array_shape(kind: str, row: Row) -> tuple[int, ...]:
    batch, heads, queries, keys = batch_shape(row), heads_of(row), row["queries"], row["keys"]
    return {
        "scores": (queries, keys),
        "tiles": (queries, keys),
        "-inf": (queries, keys),
        "keys": (1, keys),
        "queries": (queries, 1),
        "heads": (heads, queries, keys),
        "batch": (*batch, 1, 1, keys),
        "batch of one": (*(1 for _ in batch), 1, queries, keys),
        "without the first query": (*batch, 1, queries, keys),
        "whole": (*batch, heads, queries, keys),
    }[kind]


def _clear_tiles(allowed: np.ndarray) -> None:
    """Mask queries and keys at the start, in the middle and at the end, and one whole tile off the diagonal."""
    for axis in (0, 1):
        size = allowed.shape[axis]
        for part in (slice(0, size // 7), slice(size // 2, size // 2 + size // 9), slice(size - size // 8, size)):
            allowed[(slice(None), part)[:: 1 if axis else -1]] = False
    allowed[: allowed.shape[0] // 2, allowed.shape[1] // 2 :] = False


def _add_bias(made: Options, q: np.ndarray, k: np.ndarray, structure: np.random.Generator, rng: np.random.Generator) -> None:
    row, kind, heads = made.row, made.row["bias"], heads_of(made.row)
    if kind == "none":
        return
    if kind == "term":
        slope = float(structure.uniform(-0.02, 0.02))
        made.bias, made.whole_bias = (lambda arrays: KeyBias(slope)), (lambda floats, wide: slope * k)
    elif kind == "function":
        _add_score_function(made, q, k, structure, rng)
    elif kind == "alibi":
        slopes, distance = _slopes(heads), np.abs(q - k)
        made.bias = lambda arrays: mha.alibi(heads)
        made.whole_bias = lambda floats, wide: -slopes.astype(wide).astype(np.float64)[:, None, None] * distance
    elif kind.startswith("relative"):
        both = kind == "relative"
        count, furthest = 4 * int(structure.integers(2, 9)), int(structure.choice(_FURTHEST))
        furthest = max(furthest, 5 if count == 8 else 23)  # beyond the distances that have a bucket each
        buckets = made.buckets = relative_buckets(k - q, count, furthest, bidirectional=both)
        made.floats["table"] = rng.normal(size=(count, heads))
        made.bias = lambda arrays: mha.relative_bias(arrays["table"], bidirectional=both, max_distance=furthest)

        def whole(floats: Mapping[str, Floats], wide: str) -> Floats:
            of_pairs = floats["table"][buckets]
            return np.moveaxis(of_pairs[..., 0, :, :, :] if of_pairs.ndim > 3 else of_pairs, -1, -3)

        made.whole_bias = whole
    else:
        x = rng.normal(size=_array_shape(kind, row))
        if kind == "-inf":
            x[rng.random(x.shape) < 0.2] = -np.inf
        made.add_array_bias(x)


def _add_score_function(
    made: Options, q: np.ndarray, k: np.ndarray, structure: np.random.Generator, rng: np.random.Generator
) -> None:
    row, batch, heads = made.row, batch_shape(made.row), heads_of(made.row)
    sizes = {"batch": math.prod(batch), "head": heads, "key": len(k)}
    draw = Draw(structure, rng, sizes, "bias", mixed=row.get("mixed", False))
    made.add_score_function(draw.score(), draw.arrays, indices_of(q, k, batch, heads))


def _slopes(heads: int) -> np.ndarray:
    """Return ALiBi's slopes: 2^(-8 i / n) for a power of two, and then the odd i of the series for twice as many."""
    n = 1 << (heads.bit_length() - 1)
    slopes: np.ndarray = 2.0 ** np.concatenate([-8 * np.arange(1, n + 1) / n, -4 * np.arange(1, 2 * (heads - n), 2) / n])
    return slopes


_FURTHEST = (5, 23, 61, 127)
"""Maximal distances of relative biases. They are prime, so that no distance lies on the limit between two buckets."""


def relative_buckets(distance: np.ndarray, count: int, furthest: int, *, bidirectional: bool) -> np.ndarray:
    """Return the bucket, of ``count``, of each distance key position - query position, the maximal distance ``furthest``.

    Of the n buckets of a direction, n / 2 hold one distance each, and the others logarithmic ranges: bucket
    n / 2 + floor(n / 2 * log(2 d / n) / log(2 * furthest / n)), at most n - 1 (Raffel et al. 2020, section 2.1).
    """
    n = count // 2 if bidirectional else count
    back = np.minimum(np.abs(distance) if bidirectional else np.maximum(-distance, 0), furthest)
    exact = n // 2
    ratio = np.log(np.maximum(back, exact) / exact) / np.log(furthest / exact)
    far = np.minimum(n - 1, exact + (exact * ratio).astype(int))
    return np.where(back < exact, back, far) + (np.where(distance > 0, n, 0) if bidirectional else 0)
