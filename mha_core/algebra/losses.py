"""The cross-entropy of logits and labels, and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .arrays import Array, Namespace, as_integers, compute_dtype, device_of, without_gradient


def cross_entropy(xp: Namespace, logits: Array, labels: Array, *, ignore: int | None, label_smoothing: float) -> Array:
    """Mean of -log softmax(logits)[label] over the labels that are not ``ignore``; 0 if there are none.

    logits (..., classes) floating, labels (...) integers; returns () in the dtype of the logits. Half precision is computed in
    float32. With label smoothing s, the mean is over sum_k -q_k log p_k, where q is 1 - s at the label, and s / K more at each
    of the K classes (Szegedy et al. 2016, section 7).

    A class whose logit is -inf is excluded: its probability is 0, and it takes no part in the smoothing. The loss is infinite
    if a label is such a class, and NaN if a label is neither a class nor ``ignore``.
    """
    rows = _rows(xp, logits, labels, ignore)
    loss = rows.log_total - xp.take_along_axis(rows.shifted, rows.labels, axis=-1)
    if label_smoothing:
        mean = xp.sum(xp.where(rows.shifted == -math.inf, 0, rows.shifted), axis=-1, keepdims=True) / _classes(xp, rows.shifted)
        loss = (1 - label_smoothing) * loss + label_smoothing * (rows.log_total - mean)
    loss = xp.where(rows.counted, xp.where(rows.known, loss, math.nan), 0)
    return xp.astype(xp.reshape(xp.sum(loss) / rows.count, ()), logits.dtype, copy=False)


def cross_entropy_vjp(
    xp: Namespace, logits: Array, labels: Array, d_out: Array, *, ignore: int | None, label_smoothing: float
) -> Array:
    """(p - q) d_out / n for each of the n labels that count, 0 for the others; in the shape and dtype of the logits.

    p = softmax(logits), and q is the distribution that ``cross_entropy`` compares it with. ``d_out`` is the gradient of the
    loss, (). The gradient of an excluded class is 0, unless it is the label.
    """
    rows = _rows(xp, logits, labels, ignore)
    p = xp.exp(rows.shifted - rows.log_total)
    classes = xp.arange(p.shape[-1], dtype=rows.labels.dtype, device=device_of(p))
    d = xp.where(classes == rows.labels, p - (1 - label_smoothing), p)
    if label_smoothing:
        d = xp.where(rows.shifted == -math.inf, d, d - label_smoothing / _classes(xp, rows.shifted))
    scale = xp.astype(xp.reshape(d_out, (1, 1)), p.dtype, copy=False) / rows.count
    d = d * xp.where(rows.counted, xp.where(rows.known, scale, math.nan), 0)
    return xp.astype(xp.reshape(d, logits.shape), logits.dtype, copy=False)


@dataclass(frozen=True)
class _LogitRows:
    """Logits and labels as n rows, with what the loss and its gradient both need."""

    shifted: Array
    """(n, classes): each row minus its largest logit; 0 where the label does not count."""
    log_total: Array
    """(n, 1): the logarithm of the sum of exp(shifted)."""
    labels: Array
    """(n, 1): the labels; 0 for those that are not a class."""
    counted: Array
    """(n, 1): whether the label counts, so is not ``ignore``."""
    known: Array
    """(n, 1): whether the label is a class."""
    count: Array
    """(1, 1): how many labels count, at least 1."""


def _rows(xp: Namespace, logits: Array, labels: Array, ignore: int | None) -> _LogitRows:
    classes, wide = logits.shape[-1], compute_dtype(xp, logits.dtype)
    labels = as_integers(xp, xp.reshape(labels, (-1, 1)))
    known = (labels >= 0) & (labels < classes)
    counted: Any = xp.ones_like(labels, dtype=xp.bool) if ignore is None else labels != ignore
    x = xp.astype(xp.reshape(logits, (-1, classes)), wide, copy=False)
    x = xp.where(counted, x, 0)  # NaN in a row that does not count must not reach the result
    largest = without_gradient(xp, xp.max(x, axis=-1, keepdims=True))  # the loss does not depend on it
    x = x - xp.where(largest == -math.inf, 0, largest)
    total = xp.sum(xp.exp(x), axis=-1, keepdims=True)  # 0 if every class is excluded, else at least 1
    count = xp.sum(xp.astype(counted, labels.dtype), keepdims=True)
    return _LogitRows(
        shifted=x,
        log_total=xp.log(xp.where(total == 0, 1, total)),
        labels=xp.where(known, labels, 0),
        counted=counted,
        known=known,
        count=xp.astype(xp.where(count == 0, 1, count), wide),
    )


def _classes(xp: Namespace, shifted: Array) -> Array:
    """Return the number of classes of each row that are not excluded, at least 1; (n, 1)."""
    count = xp.sum(xp.astype(shifted != -math.inf, shifted.dtype), axis=-1, keepdims=True)
    return xp.where(count == 0, 1, count)
