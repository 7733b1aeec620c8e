"""The similarity of vectors: cosines, products, and the negatives of distances."""

from __future__ import annotations

from collections.abc import Callable

from mha_core.shared import Array, Namespace, check_floating, compute_dtype, did_you_mean

from .pooling import unit

_ELEMENTS = 1 << 22  # differences of numbers that are in memory at once: 16 MB in float32

_PRODUCTS: dict[str, Callable[[Namespace, Array], Array]] = {"cosine": unit, "dot": lambda xp, x: x}
"""Similarities that are products of two vectors, and what is done to each vector before."""
_DISTANCES: dict[str, Callable[[Namespace, Array], Array]] = {
    "euclidean": lambda xp, x: xp.sqrt(xp.sum(x * x, axis=-1)),
    "manhattan": lambda xp, x: xp.sum(xp.abs(x), axis=-1),
}
"""Similarities that are negatives of distances, which are norms of differences."""
SIMILARITIES = (*_PRODUCTS, *_DISTANCES)
"""Their names, as in sentence-transformers."""


def similarity(name: str, a: Array, b: Array) -> Array:
    """Return the similarity of every vector of ``a``, (n, d) or (d,), with every one of ``b``, (m, d) or (d,): (n, m)."""
    xp, a, b = _checked(name, a, b)
    a, b = (x[None, :] if x.ndim == 1 else x for x in (a, b))
    if name in _PRODUCTS:
        a, b = (_PRODUCTS[name](xp, x) for x in (a, b))
        return xp.matmul(a, xp.matrix_transpose(b))
    step = max(1, _ELEMENTS // max(1, b.shape[0] * b.shape[1]))
    starts = range(0, max(1, a.shape[0]), step)
    blocks = (a[start : min(start + step, a.shape[0]), None, :] for start in starts)
    return xp.concat([-_DISTANCES[name](xp, block - b[None, :, :]) for block in blocks], axis=0)


def similarity_pairwise(name: str, a: Array, b: Array) -> Array:
    """Return the similarity of each vector of ``a``, (n, d), with that of ``b`` in the same place: (n,)."""
    xp, a, b = _checked(name, a, b)
    if a.shape != b.shape:
        raise ValueError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected the same shape")
    if name in _PRODUCTS:
        a, b = (_PRODUCTS[name](xp, x) for x in (a, b))
        return xp.sum(a * b, axis=-1)
    return -_DISTANCES[name](xp, a - b)


def _checked(name: str, a: Array, b: Array) -> tuple[Namespace, Array, Array]:
    """Return the namespace of two arrays, and the arrays in at least float32."""
    if name not in SIMILARITIES:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(SIMILARITIES)}{did_you_mean(name, SIMILARITIES)}")
    xp = check_floating(a=a, b=b).xp
    for each, x in (("a", a), ("b", b)):
        if x.ndim not in (1, 2) or x.shape[-1] != a.shape[-1]:
            raise ValueError(f"{each} has shape {tuple(x.shape)}; expected (n, d) or (d,), one d for both")
    wide = compute_dtype(xp, a.dtype)
    return xp, xp.astype(a, wide, copy=False), xp.astype(b, wide, copy=False)
