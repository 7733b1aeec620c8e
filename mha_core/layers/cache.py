"""Caches of keys and values between the steps of decoding.

A cache is the only mutable object among the layers: each call appends to it. Decoding step by step with a cache gives the same
results as one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from ..algebra.arrays import Array, Namespace, device_of, replace_rows
from ..algebra.int8 import Int8Rows, Rows, map_rows
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import dry
from ..dispatch.selection import backend_of
from ..ops.caches import Part, unchanged_on_error
from ..ops.int8 import quantize_rows

Write: TypeAlias = Callable[[Any, int, Any], Any]
"""``Backend.write``."""


@dataclass(eq=False)
class _Store:
    """Memory with room behind the keys or values of a cache, so that appending copies nothing but the new positions."""

    array: Array
    """(..., capacity, D)."""
    held: Array
    """Its rows from ``start`` to ``end``. They are never written again, and the cache holds this very array."""
    start: int
    end: int

    @classmethod
    def of(cls, xp: Namespace, write: Write, held: Any, capacity: int) -> _Store:
        """Return a store with a copy of ``held``."""
        shape = (*held.shape[:-2], capacity, held.shape[-1])
        array = xp.zeros(shape, dtype=held.dtype, device=held.device)
        return cls(write(array, 0, held), held, 0, held.shape[-2])

    def has_room(self, held: Array, rows: Array) -> bool:
        """Return whether these rows can be written behind ``held``."""
        return self.held is held and self.end + rows.shape[-2] <= self.array.shape[-2]

    def append(self, write: Write, rows: Array, drop: int) -> Array:
        """Write rows behind those that are held, and return all but the first ``drop``."""
        self.array = write(self.array, self.end, rows)
        self.start, self.end = self.start + drop, self.end + rows.shape[-2]
        self.held = self.array[..., self.start : self.end, :]
        return self.held


@dataclass(eq=False)
class KeyValueCache:
    """Keys and values of one attention layer; empty at first.

    Self-attention appends its new positions. With a ``window`` it drops older ones, and the masks of its calls must not reach
    further back; a window that is no positive int is a ValueError. Cross-attention fills the cache once, and raises ValueError
    for another context.

    With a ``capacity`` its memory is taken at once, and a position too many is a ValueError. In compiled functions such a cache
    keeps its shapes, so a step is compiled once; there a position too many makes the result NaN, since no error can be raised.
    """

    key: Rows | None = None
    """(..., K, S, D); ``Int8Rows`` if ``dtype`` is "int8"."""
    value: Rows | None = None
    """(..., K, S, E), likewise."""
    context: Array | None = None
    """The context that cross-attention computed them from; None for self-attention."""
    source: Mapping[str, Array | None] = field(default_factory=dict, repr=False)
    """The value_context, weights and biases that they were computed with; empty if that is not known."""

    whole: int | None = None
    """The number of positions cached so far, if ``key`` holds only this rank's, or the newest of a window."""
    window: int | None = None
    """The number of newest positions that the next step may see. Older ones are dropped; None keeps all."""
    dtype: str | None = None
    """With "int8", positions are rounded as ``quantize_rows`` says, in a quarter of float32's memory; None keeps them."""
    capacity: int | None = None
    """The greatest number of positions; with None the cache grows."""
    filled: Array | None = None
    """The number of cached positions, an integer array (), if ``key`` has the whole capacity, as in a compiled step."""
    _stores: tuple[_Store, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in (None, "int8"):
            raise ValueError(f"dtype is {self.dtype!r}; expected 'int8', or None to keep positions as they are")
        for name, otherwise in (("window", "to keep all positions"), ("capacity", "to grow")):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} is {number!r}; expected an int of at least 1, or None {otherwise}")
        if self.window is not None and self.capacity is not None:
            raise ValueError("window and capacity are both given: a window bounds memory itself, leave capacity out")

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_stores": None}  # a copy does not write where this cache does

    @property
    def length(self) -> Any:
        """The number of positions that were cached, on all ranks, with those that were dropped. An int, or ``filled``."""
        if self.filled is not None:
            return self.filled
        length = 0 if self.key is None else self.key.shape[-2]
        return length if self.whole is None else self.whole

    def parts(self, shape: tuple[int, ...]) -> Sequence[Part]:
        """Return the sequences of a call whose positions have this shape, (..., L): all of them are in this cache."""
        return (Part(self, slice(None)),)

    def joined(self, key: Array, value: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Rows, Rows]:
        """Return the cached positions (with a window, the newest), followed by new ones; the cache does not change.

        Raises ValueError if batch or heads differ, if there are more than ``capacity``, if the cache holds a context, or if
        ``source`` differs from the cache's.
        """
        rows: tuple[Rows, Rows] = (key, value) if self.dtype is None else (quantize_rows(key), quantize_rows(value))
        if self.context is not None:
            raise ValueError("the cache holds the keys of a context: self-attention needs another cache")
        new = _arrays(rows)
        if self.key is not None and self.value is not None:
            old = _arrays((self.key, self.value))
        elif self.capacity is not None:
            old = [x[..., :0, :] for x in new]
        else:
            return rows
        if self.capacity is not None and self.filled is None and self.length + key.shape[-2] > self.capacity:
            raise ValueError(
                f"the cache has a capacity of {self.capacity} positions and holds {self.length}: there is no room for "
                f"{key.shape[-2]} more; begin with a larger capacity, or without one"
            )
        backend = backend_of({"key": new[0], "cache.key": old[0]})
        if key.shape[:-2] != old[0].shape[:-2]:
            raise ValueError(
                f"the cache holds keys {tuple(old[0].shape)}, the new ones are {tuple(key.shape)}: "
                "expected the same batch and heads; start another sequence with an empty cache"
            )
        self._check(source or {})
        if self.capacity is not None and (self.filled is not None or _is_traced(key)):
            return self._with_whole_capacity(backend, old, new)
        drop = 0 if self.window is None else max(0, old[0].shape[-2] - self.window)
        xp, write = backend.xp, backend.record.write
        if (
            write is None
            or dry.get()
            or backend.features([*old, *new])
            or any((x.dtype, x.device) != (y.dtype, y.device) for x, y in zip(old, new, strict=True))
        ):
            return _rows([xp.concat([x[..., drop:, :], y], axis=-2) for x, y in zip(old, new, strict=True)])
        stores = self._stores
        if stores is None or not all(map(_Store.has_room, stores, old, new)):
            capacity = self.capacity or 2 * (old[0].shape[-2] - drop + key.shape[-2])
            stores, drop = tuple(_Store.of(xp, write, x[..., drop:, :], capacity) for x in old), 0
            self._stores = stores
        return _rows([store.append(write, x, drop) for store, x in zip(stores, new, strict=True)])

    def _with_whole_capacity(self, backend: LoadedBackend, old: list[Any], new: list[Any]) -> tuple[Rows, Rows]:
        """Return arrays of the whole capacity, in which new rows follow those that are cached."""
        xp, write = backend.xp, backend.record.write_at or partial(replace_rows, backend.xp)
        start = xp.asarray(self.length, dtype=xp.arange(0).dtype, device=device_of(new[0]))

        def with_room(x: Any) -> Any:
            room = self.capacity - x.shape[-2]
            zeros = xp.zeros((*x.shape[:-2], room, x.shape[-1]), dtype=x.dtype, device=device_of(x))
            return xp.concat([x, zeros], axis=-2) if room else x

        return _rows([write(with_room(x), start, y) for x, y in zip(old, new, strict=True)])

    def of_context(self, context: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Rows, Rows] | None:
        """Return the keys and values of this context; None if the cache is empty.

        Raises ValueError for another context, and if ``source`` differs from the cache's.
        """
        if self.key is None or self.value is None:
            return None
        if not _equal(self.context, context):
            raise ValueError("the cache holds the keys of another context: start another sequence with an empty cache")
        self._check(source or {})
        return self.key, self.value

    def select(self, indices: Array) -> None:
        """Keep the sequences with these indices along the first axis, in this order; some may be left out, others repeated.

        ``indices``: integers (n,). For beams, and for batches whose sequences end at different times. Raises ValueError if keys
        have no batch axis.
        """
        if self.key is None or self.value is None:
            return
        if self.key.ndim < 4:
            raise ValueError(f"the cache holds keys {tuple(self.key.shape)}, without a batch axis: expected (batch, K, S, D)")
        xp = backend_of({"cache.key": _arrays((self.key,))[0], "indices": indices}).xp

        def take(x: Rows | None) -> Any:
            return None if x is None else map_rows(x, lambda y: xp.take(y, indices, axis=0))

        self.key, self.value, self.context = take(self.key), take(self.value), take(self.context)
        self.source = {name: take(x) if name == "value_context" else x for name, x in self.source.items()}

    def _check(self, source: Mapping[str, Array | None]) -> None:
        for name, x in source.items():
            if name in self.source and not _equal(self.source[name], x):
                raise ValueError(
                    f"the cache holds keys and values that were computed with another {name}: each layer needs its own cache, "
                    "and another sequence an empty one"
                )


def _is_traced(x: Array) -> bool:
    """Return whether a compiler sees an array in place of numbers: its library says so, or it has no device."""
    backend = backend_of({"x": x})
    return "traced" in backend.features([x]) or (device_of(x) is None and backend.record.write_at is not None)


def _arrays(rows: tuple[Rows, ...]) -> list[Any]:
    """Return the arrays that keys and values are made of: of int8 rows, the values and the scales."""
    return [x for each in rows for x in ((each.values, each.scale) if isinstance(each, Int8Rows) else (each,))]


def _rows(arrays: list[Any]) -> tuple[Rows, Rows]:
    """Return the keys and values that are made of arrays, the inverse of ``_arrays``."""
    if len(arrays) == 2:
        return arrays[0], arrays[1]
    return Int8Rows(*arrays[:2]), Int8Rows(*arrays[2:])


def _equal(x: Array | None, y: Array | None) -> bool:
    """Return whether both are None, or one array, or arrays of equal numbers, such as two views of the same weights."""
    if x is y:
        return True
    if x is None or y is None or x.shape != y.shape or x.dtype != y.dtype:
        return False
    differs = (x != y) & ~((x != x) & (y != y))  # NaN equals NaN
    return not bool(backend_of({"x": x, "y": y}).xp.any(differs))


@dataclass(eq=False)
class DecoderCache:
    """The caches of a decoder; empty at first.

    >>> import numpy as np, mha_core as mha
    >>> decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=1, seed=0)
    >>> memory, cache = np.ones((5, 8), dtype=np.float32), mha.DecoderCache()
    >>> steps = [decoder(np.ones((1, 8), dtype=np.float32), memory, cache=cache) for _ in range(3)]
    >>> cache.length
    3
    """

    layers: list[tuple[KeyValueCache, KeyValueCache]] = field(default_factory=list)
    """For each layer, one for its own positions and one for the memory."""
    window: int | None = None
    """The window of the caches for own positions, as in ``KeyValueCache``."""
    dtype: str | None = None
    """The dtype of the caches, as in ``KeyValueCache``."""
    capacity: int | None = None
    """The capacity of the caches for own positions, as in ``KeyValueCache``."""

    @property
    def length(self) -> Any:
        """The number of positions decoded so far, as in ``KeyValueCache``."""
        return self.layers[0][0].length if self.layers else 0

    def select(self, indices: Array) -> None:
        """Keep the sequences with these indices, as in ``KeyValueCache``; from then on, give the memory of those."""
        with unchanged_on_error(*self.layers):
            for cache in chain.from_iterable(self.layers):
                cache.select(indices)

    @contextmanager
    def step(self, num_layers: int) -> Iterator[list[tuple[KeyValueCache, KeyValueCache]]]:
        """Yield the caches of ``num_layers`` layers for one step; a step that raises leaves them unchanged."""
        if self.layers and len(self.layers) != num_layers:
            raise ValueError(f"the cache has {len(self.layers)} layers; expected {num_layers}, the layers of this decoder")
        started = bool(self.layers)
        options: dict[str, Any] = {"window": self.window, "capacity": self.capacity, "dtype": self.dtype}
        self.layers = self.layers or [(KeyValueCache(**options), KeyValueCache(dtype=self.dtype)) for _ in range(num_layers)]
        try:
            with unchanged_on_error(*self.layers):
                yield self.layers
        except BaseException:
            self.layers = self.layers if started else []
            raise
