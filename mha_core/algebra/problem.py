"""The record of one prepared attention call, which the algebra and every kernel receive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from .arrays import AnyIndex, Array, Namespace, broadcast_shapes, compute_dtype, device_of
from .biases import Bias
from .dropout import WeightDropout
from .expressions import Mask
from .grid import Grid
from .int8 import Int8Rows, Rows
from .structure import EVERY_KEY, Structure


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """A valid attention call without unseen keys.

    query, key and value have a head axis each, one dtype and one device; H is a multiple of K. Keys that no query may see are
    dropped or zero, in key and value alike (promise 7). Kernels read the mask from ``structure``.

    A size that the library does not know is None, as in the array API standard. Without the number of queries or keys, unseen
    keys are left to the kernel: ``structure.keys`` is ``EVERY_KEY``.
    """

    xp: Namespace
    query: Array
    """(..., H, L, D)."""
    key: Any
    """(..., K, S, D), without the keys that were dropped; an array, or ``Int8Rows``."""
    value: Any
    """(..., K, S, E), likewise."""
    structure: Structure
    """The mask as kernels read it, in the indices of ``query`` and ``key``."""
    scale: float
    mask: Mask | None = None
    """The caller's mask, a function of the caller's indices, evaluated through ``grid``."""
    bias: Bias | None = None
    """The caller's bias, a function of the caller's indices, evaluated through ``grid``."""
    softcap: float | None = None
    sink: Array | None = None
    """(H,)."""
    offset: int | Array = 0
    """The caller's query_offset, which is query position - query index."""
    dropout: WeightDropout | None = None
    """Dropout of the weights, a function of the caller's indices."""
    asked: frozenset[str] = frozenset()
    """Features that the caller or the library needs, such as ``"lse"``, the log-sum-exp, or ``"gradient"``."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        query, key, value = tuple(self.query.shape[:-3]), tuple(self.key.shape[:-3]), tuple(self.value.shape[:-3])
        return query if query == key == value else broadcast_shapes(query, key, value)

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """(..., H, L)."""
        return (*self.batch_shape, *self.query.shape[-3:-1])

    @property
    def num_groups(self) -> int:
        """Number of query heads that read one key head."""
        return max(1, self.query.shape[-3] // max(1, self.key.shape[-3]))

    @property
    def device(self) -> Any:
        return device_of(self.query)

    @property
    def compute_dtype(self) -> Any:
        return compute_dtype(self.xp, self.query.dtype)

    @property
    def features(self) -> frozenset[str]:
        """Names of the features that a kernel must declare to be given this call."""
        present = {
            "softcap": self.softcap is not None,
            "sink": self.sink is not None,
            "weight_dropout": self.dropout is not None,
            "grouped_query": self.num_groups > 1,
            "value_dim": self.query.shape[-1] != self.value.shape[-1],
            "int8": isinstance(self.key, Int8Rows),
            "broadcast": not self.query.shape[:-3] == self.key.shape[:-3] == self.value.shape[:-3],
        }
        bias = frozenset() if self.bias is None else frozenset({self.bias.feature})
        return (
            self.asked | self.structure.features | bias | frozenset(name for name, is_present in present.items() if is_present)
        )

    def grid(self, rows: AnyIndex, cols: AnyIndex) -> Grid:
        """Return the block of ``rows`` and ``cols``, both in the caller's indices."""
        return Grid(self.xp, self.device, rows, cols, self.offset, self.compute_dtype, self.rows_shape[:-1])

    def with_arrays(self, query: Array, key: Rows, value: Rows, **changes: Any) -> AttentionProblem:
        """Return the same problem with other arrays, and with ``changes`` of other fields."""
        fields = self.__dict__.copy()
        if changes:
            if not fields.keys() >= changes.keys():
                raise TypeError(f"{', '.join(changes)}: not all of these are fields of AttentionProblem")
            fields.update(changes)
        fields["query"], fields["key"], fields["value"] = query, key, value
        problem = object.__new__(AttentionProblem)  # takes 0.8 us, dataclasses.replace 4.7: a third of a tiny call
        object.__setattr__(problem, "__dict__", fields)
        return problem

    def after(self, *arrays: Array | None) -> AttentionProblem:
        """Return the same problem, to be computed once these arrays are; None stands for no array.

        Without it, a lazy library may compute all blocks before it adds any up, and hold them all. The namespace of such a
        library has a function beyond the array API: ``depends(x, y)`` returns x, and computes it after y. For others, nothing
        changes.
        """
        depends, computed = getattr(self.xp, "depends", None), [x for x in arrays if x is not None]
        if depends is None or not computed:
            return self
        return self.with_arrays(reduce(depends, computed, self.query), self.key, self.value)


def check_lengths(p: AttentionProblem, what: str) -> None:
    """Raise ValueError, naming what needs it, if the library does not know the number of queries or keys."""
    if p.structure.keys is EVERY_KEY:
        shapes = f"query {tuple(p.query.shape)}, key {tuple(p.key.shape)}"
        raise ValueError(f"{what} needs the number of queries and keys, and None stands for a number not known: {shapes}")


def scores_shape(query: Array, key: Rows, value: Rows, sink: Array | None = None) -> tuple[int, ...]:
    """Return (..., H, L, S); H is 1 for arrays of two axes. Raises ValueError that names the argument that does not fit."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected at least 2 axes, (..., heads, length, head_dim)")
    q, k, v = ((1,) * (x.ndim == 2) + tuple(x.shape) for x in (query, key, value))
    shapes = f"query {q}, key {k}, value {v}, as (..., heads, length, head_dim)"
    if k[-1] != q[-1]:
        raise ValueError(f"key has head_dim {k[-1]}, but query has {q[-1]}: {shapes}")
    if v[-2] != k[-2]:
        raise ValueError(f"value has length {v[-2]}, but key has {k[-2]}: {shapes}")
    if v[-3] != k[-3]:
        raise ValueError(f"value has {v[-3]} heads, but key has {k[-3]}: {shapes}")
    if q[-3] != k[-3] and (k[-3] == 0 or q[-3] % k[-3]):
        raise ValueError(f"query has {q[-3]} heads, which is not a multiple of key's {k[-3]} heads: {shapes}")
    if sink is not None and tuple(sink.shape) != q[-3:-2]:
        raise ValueError(f"sink has shape {tuple(sink.shape)}; expected (H,) = {q[-3:-2]}")
    try:
        batch = q[:-3] if q[:-3] == k[:-3] == v[:-3] else broadcast_shapes(q[:-3], k[:-3], v[:-3])
    except ValueError:
        raise ValueError(f"the batch axes of query, key and value do not broadcast: {shapes}") from None
    return (*batch, *q[-3:-1], k[-2])
