"""The cross-entropy and its gradient in NumPy float64, and bounds on their rounding errors.

A magnitude is the bound on an error divided by the unit roundoff of the dtype in which sums are computed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .attention import Floats
from .attention_gradients import Bounded

_FUNCTION = 4.0
"""The error of exp and log in unit roundoffs: two units in the last place."""


def cross_entropy(x: Floats, labels: Any, d: Floats, *, ignore: int, label_smoothing: float) -> dict[str, Bounded]:
    """Return the mean of -sum_k q_k log p_k and d times its gradient (p - q) / n, with their magnitudes.

    x (..., classes): logits; one that is -inf is excluded. p = softmax(x); q is 1 - s at the label, and s / K more at each of
    the K classes that are not excluded (Szegedy et al. 2016, section 7). A row whose label is unknown is NaN.
    """
    classes, s = x.shape[-1], label_smoothing
    labels = np.asarray(labels).reshape(-1, 1)
    counted, known = labels != ignore, (labels >= 0) & (labels < classes)
    t, weights, there, of_label = _rows(np.where(counted, x.reshape(-1, classes), 0), np.where(known, labels, 0))
    root, count = math.sqrt(classes) + 3, max(1, counted.sum())
    total, kept = (np.where(n == 0, 1, n) for n in (x.sum(axis=-1, keepdims=True) for x in (weights, there)))
    size = np.where(there, np.abs(t), 0)
    of_total = ((size + _FUNCTION) * weights).sum(axis=-1, keepdims=True) / total + root  # relative, so absolute in its log
    log_total = np.log(total)
    of_log = of_total + _FUNCTION * log_total
    mean_size = size.sum(axis=-1, keepdims=True) / kept
    loss, of_loss = log_total - t[of_label][:, None], of_log + 3 * (size[of_label][:, None] + log_total)
    if s:
        loss = (1 - s) * loss + s * (log_total + mean_size)  # t <= 0
        of_loss = (1 - s) * of_loss + s * (of_log + (root + 3) * mean_size + 3 * log_total)
    loss = np.where(counted, np.where(known, loss, np.nan), 0)
    terms = of_loss + (math.sqrt(len(labels)) + 3) * np.where(np.isfinite(loss), np.abs(loss), 0)

    p = weights / total
    q = np.where(there, s / kept, 0.0)
    q[of_label] += 1 - s
    scale = np.where(counted, np.where(known, d / count, np.nan), 0)
    of_p = p * (size + of_log + np.where(there, np.abs(t - log_total), 0) + _FUNCTION)
    gradient = (p - q) * scale
    of_gradient = np.abs(np.where(counted, d / count, 0)) * (of_p + 2 * q + 3 * np.abs(p - q))
    return {
        "cross_entropy": (np.asarray(loss.sum() / count), np.asarray(terms[counted].sum() / count)),
        "cross_entropy d_logits": (gradient.reshape(x.shape), of_gradient.reshape(x.shape)),
    }


def _rows(x: Floats, labels: Any) -> tuple[Floats, Floats, Any, Any]:
    """Return each row minus its largest logit, its exponentials, which classes are not excluded, and the places of labels."""
    largest = x.max(axis=-1, keepdims=True)
    t = x - np.where(largest == -np.inf, 0, largest)
    return t, np.exp(t), t > -np.inf, (np.arange(len(x)), labels[:, 0])
