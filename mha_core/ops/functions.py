"""Masks and scores written as functions, those of torch's FlexAttention among them, and maps of the blocks of a mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from ..algebra.arrays import Array, at_least, device_of, is_array
from ..algebra.biases import Bias
from ..algebra.expressions import Mask, as_mask
from ..algebra.functions import BLOCK, Bounds, FunctionMask, MappedMask, name_of, reduced
from ..algebra.grid import FARTHEST, Grid
from ..algebra.tiles import pieces
from ..autodiff.score_function import ScoreFunction
from ..dispatch.backend import LoadedBackend
from ..dispatch.default import backend_without_arrays
from ..dispatch.selection import backend_of, check_same_device
from . import check

_PAIRS = 1 << 21  # pairs evaluated together


def mask_function(
    function: Callable[..., Any],
    arrays: Iterable[Array] = (),
    *,
    relation: Callable[[Bounds, Bounds], bool | None] | None = None,
) -> Mask:
    """The mask of a function of ``(batch, head, query, key, *arrays)``, which is True for the pairs that attend.

    The function receives arrays of integers of the query's library, which broadcast against each other and have no fixed number
    of axes: the number of the batch element, in the order of memory; the head; the position of the query, ``query_offset``
    included; and that of the key. It returns booleans that broadcast likewise, and must return the same for the same arguments.
    It is called for blocks of pairs. The mask combines with others by ``& | ~``.

    Parameters
    ----------
    function : callable
        Uses operators, indexing, and functions of the arrays' library.
    arrays : arrays that the function reads, of the query's library and device
        Each is passed to the function whole. An array that it reads from its surroundings works too, but is not checked.
    relation : callable, optional
        (first and last query position, first and last key position) -> True if all of these pairs attend, False if none does,
        None if that is not known. Blocks of which none attends are not computed. ``block_mask`` finds out by itself.

    Source: Dong et al. 2024 (FlexAttention), section 3. Raises TypeError for what is not callable, or not an array.

    >>> import numpy as np, mha_core as mha
    >>> x = np.eye(3)
    >>> mha.attention_weights(x, x, mask=mha.mask_function(lambda batch, head, query, key: query == key))
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """
    _check_function("mask_function", function, 4)
    if relation is not None and not callable(relation):
        raise TypeError(f"mask_function(relation) is {type(relation).__name__}; expected a function of two pairs of positions")
    return FunctionMask(function, _arrays("mask_function", arrays), relation)


def score_function(function: Callable[..., Any], arrays: Iterable[Array] = ()) -> Bias:
    """A function of ``(score, batch, head, query, key, *arrays)`` that returns another score, given to attention as ``bias``.

    It is applied after softcap and before the mask, score by score: each result may depend on one score only. Indices are as in
    ``mask_function``; the score has the dtype that attention computes in. Gradients flow through it to query, key and value,
    and to those of ``arrays`` that are floating.

    Parameters
    ----------
    function : callable
        Uses operators, indexing, and functions of the arrays' library; with gradients on NumPy and CuPy, those with a rule.
    arrays : arrays that the function reads, of the query's library and device
        Floating ones have the query's dtype, or that of the scores, in which the function receives them. Gradients reach those
        that are passed here, and no others.

    Source: Dong et al. 2024 (FlexAttention), section 3. Raises TypeError for what is not callable, or not an array.

    >>> import numpy as np, mha_core as mha
    >>> x, slopes = np.zeros((1, 2, 4)), np.asarray([0.5])
    >>> def nearer(score, batch, head, query, key, slopes):
    ...     return score - slopes[head] * abs(query - key)
    >>> alibi = mha.score_function(nearer, [slopes])
    >>> mha.attention_weights(x, x, bias=alibi).round(2)
    array([[[0.62, 0.38],
            [0.38, 0.62]]])
    """
    _check_function("score_function", function, 5)
    return ScoreFunction(function, _arrays("score_function", arrays))


def from_flex(function: Callable[..., Any]) -> Mask | Bias:
    """A function of torch's FlexAttention: a mask of (batch, head, query, key), a score function of (score, batch, ...).

    The number of parameters says which. Arrays that it reads from its surroundings must be of the query's library and device,
    and get no gradients. A function that uses operators and indexing alone works on every library; one that calls torch's
    functions works on torch.

    Raises TypeError for a function of another number of parameters.

    >>> import mha_core as mha
    >>> mask = mha.from_flex(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    """
    if not callable(function):
        raise TypeError(f"from_flex(function) is {type(function).__name__}; expected a function")
    count = _number_of_parameters(function)
    if count not in (4, 5):
        raise TypeError(
            f"from_flex({name_of(function)}) has {count} parameters; expected 4, (batch, head, query, key), "
            "or 5, (score, batch, head, query, key)"
        )
    return mask_function(function) if count == 4 else score_function(function)


def block_mask(
    mask: Mask | Callable[..., Any],
    num_queries: int,
    num_keys: int,
    *,
    batch_shape: Sequence[int] | None = None,
    num_heads: int | None = None,
    query_offset: int = 0,
    backend: str | None = None,
    device: Any = None,
) -> Mask:
    """The same mask with a map that says which of its tiles of 64 queries and 64 keys attend: none, some or all pairs.

    Every pair is evaluated once, and the map lives as long as the mask. Attention then skips tiles of which no pair attends,
    and evaluates no mask where all do.

    Parameters
    ----------
    mask : Mask, or a function as in ``mask_function``
    num_queries, num_keys : int
        Those of the attention calls, whose ``query_offset`` must be the same too.
    batch_shape, num_heads
        Needed if the mask depends on them; otherwise the mask fits any.
    backend, device
        Where it is evaluated, if the mask contains no arrays; attention may run elsewhere.

    Raises TypeError or ValueError if the mask is none, or depends on the batch or the head and their numbers are not given.

    >>> import mha_core as mha
    >>> mha.block_mask(mha.causal(), 128, 128).counts
    {'none': 1, 'some': 2, 'all': 1}
    """
    whole = as_mask(mask_function(mask) if callable(mask) and not isinstance(mask, Mask) else mask)
    queries, keys = check.integer("num_queries", num_queries, 1), check.integer("num_keys", num_keys, 1)
    offset = check.integer("query_offset", query_offset, -FARTHEST)
    inside = dict(whole.arrays())
    loaded = backend_of(inside) if inside else backend_without_arrays(backend, device)
    if inside:
        first = next(iter(inside))
        device = device_of(inside[first])
        check_same_device(inside[first], inside.items(), first=first)
    batch = tuple(check.integer("batch_shape", n, 1) for n in ((1,) if batch_shape is None else batch_shape))
    leading = (*batch, check.integer("num_heads", 1 if num_heads is None else num_heads, 1))
    if batch_shape is None or num_heads is None:
        _check_given(loaded, device, whole, offset, leading, batch_shape is None, num_heads is None)
    xp, shape = loaded.xp, (*leading, queries, keys)
    for term in whole.walk():
        term.check(xp, shape)

    def evaluated(rows: range) -> tuple[Any, Array]:
        """Return the codes of some queries, and which keys they see."""
        block = at_least(xp, whole.block(Grid(xp, device, rows, range(keys), offset, None, leading)), 2)
        codes, seen = reduced(xp, block, len(rows), keys)
        return loaded.to_numpy(codes), seen

    rows = max(1, _PAIRS // keys // BLOCK) * BLOCK
    strips = list(loaded.parallel(evaluated, pieces(range(queries), rows)))
    return MappedMask(
        whole,
        tuple(row.tobytes() for strip, _ in strips for row in strip),
        *(queries, keys, offset),
        None if batch_shape is None else batch,
        num_heads,
        bool(xp.all(reduce(or_, (seen for _, seen in strips)))),
    )


def _check_given(
    backend: LoadedBackend, device: Any, mask: Mask, offset: int, leading: tuple[int, ...], any_batch: bool, any_heads: bool
) -> None:
    """Raise ValueError if the mask has another value for each batch element or head, and their number is not given."""
    *batch, heads = leading
    tried = (*((2,) if any_batch else batch), 2 if any_heads else heads)
    shape = tuple(mask.block(Grid(backend.xp, device, range(1), range(1), offset, None, tried)).shape)
    if any_heads and len(shape) > 2 and shape[-3] != 1:
        raise ValueError("the mask depends on the head: write block_mask(..., num_heads=...)")
    if any_batch and any(size != 1 for size in shape[:-3]):
        raise ValueError("the mask depends on the batch element: write block_mask(..., batch_shape=...)")


def _check_function(name: str, function: Any, count: int) -> None:
    if not callable(function) or isinstance(function, type):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        expected = "(score, batch, head, query, key)" if count == 5 else "(batch, head, query, key)"
        raise TypeError(f"{name}(function) is {kind}; expected a function of {expected}")


def _arrays(name: str, arrays: Iterable[Array]) -> tuple[Array, ...]:
    if is_array(arrays):
        raise TypeError(f"{name}(arrays) is one array; expected a list of arrays: write [array]")
    given = tuple(arrays)
    for at, x in enumerate(given):
        if not is_array(x):
            raise TypeError(f"{name}(arrays[{at}]) is {type(x).__name__}; expected an array of the query's library")
    return given


def _number_of_parameters(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is each.empty for each in inspect.signature(function).parameters.values())
