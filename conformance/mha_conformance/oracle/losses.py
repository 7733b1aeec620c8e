"""The cross-entropy and its gradient in NumPy float64, and bounds on their rounding errors.

A magnitude is the bound on an error divided by the unit roundoff u of the dtype in which sums are computed. With t = x - max(x)
and T the sum of exp(t), the loss of a row is log(T) - t[label], and its error is relative to t. As log(T) + max(x) - x[label],
it has an error relative to x; such an implementation fails where logits are large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .attention import Floats
from .attention_gradients import Bounded
from .tolerance import NORMAL, UNIT_ROUNDOFF, absorbed, compute_dtype

_FUNCTION = 4.0
"""The error of exp and log themselves: two units in the last place."""
_BASE_2 = 9 / 4
"""The error of exp(t), relative to |t|: of the difference t, of its product with log2(e), and of log2(e); see ``tolerance``."""


@np.errstate(invalid="ignore")  # -inf - -inf, in places that are replaced
def cross_entropy(
    x: Floats, labels: Any, d: Floats, dtype: str, *, ignore: int | None, label_smoothing: float
) -> dict[str, Bounded]:
    """Return the mean of -sum_k q_k log p_k and d times its gradient (p - q) / n, with their magnitudes.

    x (..., classes): logits; one that is -inf is excluded. p = softmax(x); q is 1 - s at the label, and s / K more at each of
    the K classes that are not excluded (Szegedy et al. 2016, section 7). A row whose label is unknown is NaN.
    """
    classes, s = x.shape[-1], label_smoothing
    labels = np.asarray(labels, dtype=np.int64).reshape(-1, 1)
    counted = np.ones(labels.shape, dtype=bool) if ignore is None else labels != ignore
    known = (labels >= 0) & (labels < classes)
    t, included = _shifted(np.where(counted, x.reshape(-1, classes), 0))
    weights, size = np.exp(t), np.where(included, np.abs(t), 0)
    label_index = np.arange(len(t)), np.where(known, labels, 0)[:, 0]
    num_included, total = (np.where(n == 0, 1, n) for n in (y.sum(axis=-1, keepdims=True) for y in (included, weights)))
    p, count, root, u = weights / total, max(1, counted.sum()), math.sqrt(classes), UNIT_ROUNDOFF[compute_dtype(dtype)]

    # a sum of K terms, and of each the error of its exponential; that of a logarithm is relative to it, and absolute in its sum
    log_error = ((_BASE_2 * size + _FUNCTION) * p + absorbed(u, p, 1.0) / u).sum(axis=-1, keepdims=True) + root
    log_total = np.log(total)
    log_error = log_error + _FUNCTION * log_total
    mean_size = size.sum(axis=-1, keepdims=True) / num_included
    loss = log_total - t[label_index][:, None]
    loss_error = log_error + 2 * (size[label_index][:, None] + log_total)  # the differences t, and of log_total and t
    if s:  # the mean of t; products with s and 1 - s, which are rounded too; and two sums
        loss = (1 - s) * loss + s * (log_total + mean_size)
        loss_error = (1 - s) * loss_error + s * (log_error + (root + 2) * mean_size) + 4 * _finite(loss)
    loss = np.where(counted, np.where(known, loss, np.nan), 0)
    loss_error = loss_error + (math.sqrt(len(labels)) + 3) * _finite(loss)  # the sum, the count and the quotient

    q = np.where(included, s / num_included, 0.0)
    q[label_index] += 1 - s
    scale = np.where(counted, np.where(known, d / count, np.nan), 0)
    p_error = p * (_BASE_2 * np.where(included, np.abs(t - log_total), 0) + log_error + size + _FUNCTION)
    p_error = p_error + np.where(included, NORMAL[compute_dtype(dtype)] / u, 0)  # it may be flushed
    gradient_error = p_error + 2 * q + 4 * np.abs(p - q)  # s / K and 1 - s, the differences, and the products with d / n
    gradient_error = gradient_error * np.abs(np.where(counted, d / count, 0))
    return {
        "cross_entropy": (np.asarray(loss.sum() / count), np.asarray(loss_error[counted].sum() / count)),
        "cross_entropy d_logits": (((p - q) * scale).reshape(x.shape), gradient_error.reshape(x.shape)),
    }


def _finite(x: Floats) -> Floats:
    """Return x with 0 in place of NaN and infinity."""
    return np.where(np.isfinite(x), x, 0)


def _shifted(x: Floats) -> tuple[Floats, Any]:
    """Return each row minus its largest logit, and which classes are not excluded."""
    largest = x.max(axis=-1, keepdims=True)
    t = x - np.where(largest == -np.inf, 0, largest)
    return t, ~(t == -np.inf)
