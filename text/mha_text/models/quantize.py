"""Vectors in fewer bits, as sentence-transformers defines them; and bits packed into bytes."""

from __future__ import annotations

from mha_core.shared import Array, Namespace, check_floating, compute_dtype, device_of, did_you_mean

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
_BITS = (128, 64, 32, 16, 8, 4, 2, 1)


def quantize_embeddings(
    embeddings: Array, precision: str, ranges: Array | None = None, calibration_embeddings: Array | None = None
) -> Array:
    """Return vectors in fewer bits, with the numbers of sentence-transformers' function of the same name.

    uint8: floor(255 (x - low) / (high - low)), within 0 and 255, where low and high are the range of each of the d numbers;
    int8: 128 less. ubinary: whether each number is above 0, 8 in a byte, the first in the highest bit; binary: 128 less.

    >>> import numpy as np
    >>> import mha_text as mt
    >>> mt.quantize_embeddings(np.asarray([[0.0, -1.0], [0.5, 1.0], [1.0, 0.0]]), "uint8").tolist()
    [[0, 0], [127, 255], [255, 127]]
    >>> mt.quantize_embeddings(np.asarray([[0.5, -1.0, 0.25]]), "ubinary").tolist()
    [[160]]

    Parameters
    ----------
    embeddings : array (n, d), or (d,)
        Such as ``encoder.encode(texts)``.
    precision : "float32", "int8", "uint8", "binary" or "ubinary"
    ranges : array (2, d), or None
        The least and the greatest of each number, for int8 and uint8. Take the same ranges for all vectors that are compared.
    calibration_embeddings : array (m, d), or None
        Vectors whose least and greatest numbers are the ranges; None: ``embeddings`` themselves.

    Returns
    -------
    array (n, d) of int8 or uint8, or (n, d / 8) of them for binary and ubinary; (d,), (d / 8,) for one vector

    Raises
    ------
    ValueError
        For an unknown precision, shapes that do not fit, and one vector without ranges.
    TypeError
        For arrays that are not floating.
    """
    check_precision(precision)
    optional = {"ranges": ranges, "calibration_embeddings": calibration_embeddings}
    xp = check_floating(embeddings=embeddings, optional=optional).xp
    d = embeddings.shape[-1]
    if embeddings.ndim not in (1, 2):
        raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}; expected (n, d) or (d,)")
    if ranges is not None and tuple(ranges.shape) != (2, d):
        raise ValueError(f"ranges has shape {tuple(ranges.shape)}; expected (2, {d}): the least and the greatest numbers")
    if precision == "float32":
        return xp.astype(embeddings, xp.float32, copy=False)
    if precision in ("binary", "ubinary"):
        return _shifted(xp, pack_bits(xp, embeddings > 0), precision == "binary")
    if ranges is None:
        ranges = _ranges(xp, precision, embeddings if calibration_embeddings is None else calibration_embeddings, d)
    wide = compute_dtype(xp, embeddings.dtype)
    embeddings, ranges = (xp.astype(x, wide, copy=False) for x in (embeddings, ranges))
    low = ranges[0, :]
    step = (ranges[1, :] - low) / 255
    numbers = xp.floor((embeddings - low) / xp.where(step == 0, 1, step))
    return _shifted(xp, xp.astype(xp.clip(numbers, 0, 255), xp.uint8), precision == "int8")


def check_precision(precision: str) -> None:
    """Raise ValueError unless there is such a precision."""
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}{hint}")


def pack_bits(xp: Namespace, bits: Array) -> Array:
    """(..., d) booleans -> (..., d / 8, rounded up) in uint8; the first is the highest bit, and missing ones are 0."""
    *rows, d = bits.shape
    count = -(-d // 8)
    missing = xp.zeros((*rows, 8 * count - d), dtype=xp.uint8, device=device_of(bits))
    whole = xp.reshape(xp.concat([xp.astype(bits, xp.uint8), missing], axis=-1), (*rows, count, 8))
    return xp.sum(whole * xp.asarray(_BITS, dtype=xp.uint8, device=device_of(bits)), axis=-1, dtype=xp.uint8)


def _ranges(xp: Namespace, precision: str, vectors: Array, d: int) -> Array:
    """Return the least and the greatest of each number, (2, d)."""
    if vectors.shape[-1] != d or vectors.ndim > 2:
        raise ValueError(f"calibration_embeddings has shape {tuple(vectors.shape)}; expected (m, {d})")
    if vectors.ndim == 1 or vectors.shape[0] == 1:
        raise ValueError(
            f"{precision} needs the range of each number, which one vector does not have: "
            f"write mt.quantize_embeddings(encoder.encode(texts), {precision!r}, ranges=...)"
        )
    if vectors.shape[0] == 0:
        return xp.zeros((2, d), dtype=xp.float32, device=device_of(vectors))
    return xp.stack([xp.min(vectors, axis=0), xp.max(vectors, axis=0)])


def _shifted(xp: Namespace, x: Array, is_signed: bool) -> Array:
    """uint8, or int8 that is 128 less."""
    return xp.astype(xp.astype(x, xp.int16) - 128, xp.int8) if is_signed else x
