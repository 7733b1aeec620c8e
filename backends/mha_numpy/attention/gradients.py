"""Gradients of attention on all cores: tasks that each compute some heads and some keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call, goes_by_sequence, heads_together, pieces

from ..threads import run, run_in_turn
from .bias_gradients import BiasGradient, DistanceGradient
from .gradient_sums import Sums, of_sink
from .gradient_tiles import HeadGradients
from .masks_and_biases import Heads
from .split import split
from .subproblem import Subproblem

_ROWS = 512  # queries in a tile, at most
_COLS = 512  # keys in a tile of as many queries, at most
_BAND_COLS = 192  # keys in a tile with a band, along which hidden pairs are computed in vain
_PAIRS = 1 << 18  # pairs in a tile; half as many take 5% longer, since more calls cost more than a better cache gains
_MASK_PAIRS = 1 << 21  # pairs of a mask that no view can express, evaluated at a time, at most
_MIN_TASKS = 16  # if there are fewer tasks, keys are cut into spans,
_SPAN = 512  # of at least so many keys,
_MOST_SPANS = 4  # but into no more spans than this, because each has a sum of the gradients of all queries
_SERIAL = 1 << 18  # pairs below which no other thread is woken


class GradientPart(NamedTuple):
    """Some heads of a subproblem, and one of the same shapes whose query, key and value are gradients, to be written."""

    subproblem: Subproblem
    gradient: Subproblem
    heads: list[Heads]
    """Each entry: heads that are computed together."""
    bias: BiasGradient | None


class GradientTask(NamedTuple):
    """Parts of a problem, and a span of their keys; calling the task computes their gradients."""

    parts: list[GradientPart]
    span: range
    wanted: Set[str]

    def __call__(self) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            for part in self.parts:
                self._compute(part)
                if part.subproblem.sequences and not self._is_finite(part):
                    self._compute_each_sequence(part)

    @property
    def cost(self) -> int:
        """The number of pairs that some band lets through, about."""
        return sum(
            len(s.band.rows_of(self.span, range(s.query.shape[3]))) * len(self.span) * sum(map(_count, heads))
            for s, _, heads, _ in self.parts
        )

    def _compute(self, part: GradientPart) -> None:
        s, g, heads, bias = part
        cols, rows = _tile_shape(s)
        blocks = pieces(range(self.span.start, min(self.span.stop, s.num_keys)), cols, even=True)
        kept = [HeadGradients(s, g, heads[0], self.wanted, bias)] if len(heads) == 1 and blocks else []
        for at, block in enumerate(blocks):
            tiles = s.tiles_of_keys(block, rows)
            whole = len(blocks) == 1 and bool(tiles) and tiles[0].rows == range(s.query.shape[3])
            if at == 0 and not whole:
                self._clear(part)
            for head_gradients in kept or (HeadGradients(s, g, together, self.wanted, bias) for together in heads):
                head_gradients.add(block, tiles, whole)
        if not blocks:
            self._clear(part)

    def _clear(self, part: GradientPart) -> None:
        if "query" in self.wanted:
            for heads in part.heads:
                part.gradient.query[heads].fill(0)

    def _is_finite(self, part: GradientPart) -> bool:
        arrays = (getattr(part.gradient, name) for name in ("query", "key", "value") if name in self.wanted)
        return all(np.isfinite(x[heads]).all() for x in arrays for heads in part.heads)

    def _compute_each_sequence(self, part: GradientPart) -> None:
        """Compute the part again, so that NaN and infinity stay in the sequence that has them."""
        s, g, heads, bias = part
        if isinstance(bias, DistanceGradient):
            bias.sums.fill(0)
        every = range(s.query.shape[3])
        for (alone, _), (gradient, _) in zip(s.each_sequence(every), g.each_sequence(every), strict=True):
            self._compute(GradientPart(alone, gradient, heads, bias))


def supports(call: Call) -> str | None:
    """Return why the kernel does not support a call, or None."""
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    if {"d_bias", "relative_bias"} <= call.features and call.option("query_offset") is None:
        return "does not support a gradient of relative_bias with a query_offset for each batch element"
    return None


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """The gradients of attention as ``mha_core`` defines them. Every call returns the same bits, for any number of threads."""
    out: Any = state.out
    d_out = np.zeros_like(out) if d_out is None else d_out
    subproblems, sums, tasks = list(split(p, d_out, state.lse)), Sums(p, wanted), []
    groups = list(_groups(subproblems, together=sums.bias_is_shared))
    for span in _spans(p, len(groups)):
        gradients = list(split(sums.of_span(), out, d_lse))
        for group in groups:
            pairs = [(subproblems[at], gradients[at], heads) for at, heads in group]
            tasks.append(GradientTask([GradientPart(s, g, heads, sums.bias_of(s, g)) for s, g, heads in pairs], span, wanted))
    if len(tasks) > 1 and sum(task.cost for task in tasks) > _SERIAL:
        run(GradientTask.__call__, sorted(tasks, key=lambda task: -task.cost))
    else:
        run_in_turn(GradientTask.__call__, tasks)
    with np.errstate(all="ignore"):
        return sums.gradients()._replace(sink=of_sink(p, state, d_out, d_lse) if "sink" in wanted else None)


def _groups(subproblems: list[Subproblem], *, together: bool) -> Iterator[list[tuple[int, list[Heads]]]]:
    """Yield what each task computes: the indices of some subproblems, each with some of its heads."""
    every = [(at, _heads_of(s)) for at, s in enumerate(subproblems)]
    if together:
        yield every
        return
    for at, heads in every:
        # a mask is evaluated once for all heads
        for of_task in [heads] if subproblems[at].tile_mask is not None else [[each] for each in heads]:
            yield [(at, of_task)]


def _heads_of(s: Subproblem) -> list[Heads]:
    (batch, key_heads, group, length, _), (cols, rows) = s.query.shape, _tile_shape(s)
    size = max(1, _PAIRS // (min(rows, length) * group * min(cols, s.num_keys or 1)))
    return heads_together(batch, key_heads, min(size, batch * key_heads), even=True)


def _tile_shape(s: Subproblem) -> tuple[int, int]:
    """Return the number of keys and the number of queries of a tile, at most."""
    group, length = s.query.shape[2:4]
    rows = min(length, max(1, _ROWS // group))
    hides = s.band != (None, None) or s.tile_mask is not None
    cols = _BAND_COLS if hides else max(_COLS, _PAIRS // (rows * group))
    if s.tile_mask is not None:
        cols = min(cols, max(16, _MASK_PAIRS // (s.tile_mask.copies * length)))
    return cols, rows


def _spans(p: AttentionProblem, num_tasks: int) -> Iterable[range]:
    """Cut the keys into spans, if there are few tasks."""
    keys = range(len(p.structure.keys))
    count = 1 if goes_by_sequence(p) else min(-(-_MIN_TASKS // num_tasks), _MOST_SPANS, len(keys) // _SPAN)
    return pieces(keys, -(-len(keys) // max(1, count)), even=True)


def _count(heads: Heads) -> int:
    return (heads[0].stop - heads[0].start) * (heads[1].stop - heads[1].start)
