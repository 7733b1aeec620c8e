"""Losses."""

from __future__ import annotations

from typing import Any

from ..algebra import losses as algebra
from ..algebra.arrays import Array
from ..autodiff.recorded import Recorded
from ..dispatch.selection import check_floating, check_same_device
from . import check
from .operation import Step


def cross_entropy(logits: Array, labels: Array, *, ignore: int | None = None, label_smoothing: float = 0.0) -> Array:
    """Return the mean of -log softmax(logits)[label], in nats.

    Source: Szegedy et al. 2016, section 7, for label smoothing.

    Parameters
    ----------
    logits : array (..., classes)
        A class whose logit is -inf is excluded.
    labels : integers (...), 0 to classes - 1
        Another number makes the result NaN, unless it is ``ignore``.
    ignore : int
        Labels equal to this number do not count, as for padding. If none counts, the result is 0.
    label_smoothing : float in [0, 1)
        The share of each label that is spread evenly over all classes.

    Returns
    -------
    array ()
        In the dtype of the logits; half precision is computed in float32.

    Raises
    ------
    TypeError
        For logits that are not floating, or labels that are not integers.
    ValueError
        For shapes that do not fit, or a label smoothing outside [0, 1).

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> float(mha.cross_entropy(np.zeros((2, 4)), np.asarray([0, 3])).round(4))
    1.3863
    """
    smoothing = check.below_one("label_smoothing", label_smoothing)
    if ignore is not None and (isinstance(ignore, bool) or not isinstance(ignore, int)):
        raise TypeError(f"ignore is {type(ignore).__name__}; expected an int, or None")
    return _cross_entropy(logits, labels, ignore=ignore, label_smoothing=smoothing)


@Step
def _cross_entropy(logits: Array, labels: Array, **options: Any) -> Array:
    backend = check_floating(logits=logits)
    xp = (backend.plain or backend).xp
    check_same_device(logits, [("labels", labels)], first="logits")
    if not xp.isdtype(labels.dtype, "integral"):
        raise TypeError(f"labels has dtype {labels.dtype}; expected integers")
    check.ndim("logits", logits, 1, "(..., classes)")
    check.shape("labels", labels, tuple(logits.shape[:-1]), "the shape of logits without classes")
    if not logits.shape[-1]:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; expected at least 1 class")
    if not isinstance(logits, Recorded):
        return algebra.cross_entropy(xp, logits, labels, **options)
    values = logits.value
    loss = algebra.cross_entropy(xp, values, labels, **options)
    made: Array = backend.xp.record(
        loss, [logits.node], lambda d: [algebra.cross_entropy_vjp(xp, values, labels, d, **options)], [labels]
    )
    return made
