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
    counted, known = labels != ignore, (labels >= 0) & (labels < classes)
    if ignore is None:
        counted[:] = True
    t, there = _shifted(np.where(counted, x.reshape(-1, classes), 0))
    weights, size, of_label = np.exp(t), np.where(there, np.abs(t), 0), (np.arange(len(t)), np.where(known, labels, 0)[:, 0])
    kept, total = (np.where(n == 0, 1, n) for n in (y.sum(axis=-1, keepdims=True) for y in (there, weights)))
    p, count, root, u = weights / total, max(1, counted.sum()), math.sqrt(classes), UNIT_ROUNDOFF[compute_dtype(dtype)]

    # a sum of K terms, and of each the error of its exponential; that of a logarithm is relative to it, and absolute in its sum
    of_log = ((_BASE_2 * size + _FUNCTION) * p + absorbed(u, p, 1.0) / u).sum(axis=-1, keepdims=True) + root
    log_total = np.log(total)
    of_log = of_log + _FUNCTION * log_total
    mean_size = size.sum(axis=-1, keepdims=True) / kept
    loss = log_total - t[of_label][:, None]
    of_loss = of_log + 2 * (size[of_label][:, None] + log_total)  # the differences t, and of log_total and t
    if s:  # the mean of t; products with s and 1 - s, which are rounded too; and two sums
        loss = (1 - s) * loss + s * (log_total + mean_size)
        of_loss = (1 - s) * of_loss + s * (of_log + (root + 2) * mean_size) + 4 * np.where(np.isfinite(loss), loss, 0)
    loss = np.where(counted, np.where(known, loss, np.nan), 0)
    terms = of_loss + (math.sqrt(len(labels)) + 3) * np.where(np.isfinite(loss), loss, 0)  # the sum, the count and the quotient

    q = np.where(there, s / kept, 0.0)
    q[of_label] += 1 - s
    scale = np.where(counted, np.where(known, d / count, np.nan), 0)
    of_p = p * (_BASE_2 * np.where(there, np.abs(t - log_total), 0) + of_log + size + _FUNCTION)
    of_p = of_p + np.where(there, NORMAL[compute_dtype(dtype)] / u, 0)  # it may be flushed
    of_gradient = of_p + 2 * q + 4 * np.abs(p - q)  # s / K and 1 - s, the differences, and the products with d / n
    of_gradient = of_gradient * np.abs(np.where(counted, d / count, 0))
    return {
        "cross_entropy": (np.asarray(loss.sum() / count), np.asarray(terms[counted].sum() / count)),
        "cross_entropy d_logits": (((p - q) * scale).reshape(x.shape), of_gradient.reshape(x.shape)),
    }


def _shifted(x: Floats) -> tuple[Floats, Any]:
    """Return each row minus its largest logit, and which classes are not excluded."""
    largest = x.max(axis=-1, keepdims=True)
    t = x - np.where(largest == -np.inf, 0, largest)
    return t, ~(t == -np.inf)
