"""Attention on dask arrays: a task for each chunk of queries with each chunk of keys that one of them may see.

A task computes the state of its block on NumPy arrays, by mha-core's kernels for NumPy. The states of a chunk of queries are
merged in pairs, as a tree: about log2(n) of n states are in memory at once. Blocks that the mask hides have no task, and
their keys are not read.
"""

from contextvars import Context
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from dask.utils import parse_bytes

import mha_core as mha
from mha_core.plugin import AttentionState, Part, Relation, by_batch_slices, concat_queries, map_arrays, merge

_KEPT = "1 GiB"
_PLACE = np.empty(0)  # of an array that a task receives


def attention(p):
    """Return the state of a problem, of which nothing is computed yet."""
    query, key, value = p.query, p.key, p.value
    if _is_same_for_each_element(p) and query.ndim == len(p.batch_shape) + 3 > 3 and query.numblocks[0] > 1:
        return by_batch_slices(p, query.chunks[0][0], attention)
    query, key = (_along_length(x, x.chunks[-2]) for x in (query, key))
    value = _along_length(value, key.chunks[-2])
    cols = _positions(key, p.structure.keys.start)
    if query.numblocks[-2] == 1 or _are_kept(key, value):
        sources, pairs = (key, value), [[_task(key, at), _task(value, at)] for at in range(len(cols))]
    else:
        sources, pairs = (), _computed_again(key, value)
    rows = (_QueryChunk(p, span, (query, *sources)) for span in _positions(query, 0))
    states = [each.state(_task(query, at), zip(cols, pairs, strict=True)) for at, each in enumerate(rows)]
    return concat_queries(p.xp, states)


def _is_same_for_each_element(p):
    """Return whether no mask, bias or option tells elements of the batch apart.

    Raises TypeError for a mask or bias with an array that cannot be replaced, in a task, by its numbers.
    """
    terms, replaceable = [term for term in (p.mask, p.bias) if term is not None], []
    map_arrays(terms, lambda x: replaceable.append(x) or x)
    arrays = [x for term in terms for _, x in term.arrays()]
    if len(replaceable) < len(arrays):
        raise TypeError("on dask arrays, a mask or bias of your own that contains arrays must be a frozen dataclass")
    return isinstance(p.offset, int) and p.dropout is None and not arrays


def _along_length(x, chunks):
    """Return an array in chunks along its length only."""
    return x.rechunk({axis: chunks if axis == x.ndim - 2 else -1 for axis in range(x.ndim)})


def _positions(x, start):
    """Return the range of positions of each chunk along the length, the first of which is ``start``."""
    ends = list(accumulate(x.chunks[-2], initial=start))
    return [range(*pair) for pair in pairwise(ends)]


def _task(x, at):
    """Return the key of the task that computes a chunk along the length."""
    return (x.name, *[0] * (x.ndim - 2), at, 0)


def _are_kept(key, value):
    """Return whether keys and values stay in memory, once computed, until the last chunk of queries has read them."""
    if dask.config.get("scheduler", None) == "dask.distributed":
        return True  # it spills to disk
    return key.nbytes + value.nbytes <= parse_bytes(dask.config.get("mha_dask.kept", _KEPT))


def _computed_again(key, value):
    """Return for each chunk of keys a task that computes it and its values, from the graph that it holds."""
    key, value = dask.optimize(key, value)
    graph = {**key.__dask_graph__(), **value.__dask_graph__()}
    wanted = ([_task(key, at), _task(value, at)] for at in range(key.numblocks[-2]))
    return [(partial(dask.get, cull(graph, pair)[0], pair),) for pair in wanted]


class _QueryChunk:
    """The graph of attention of one chunk of queries."""

    def __init__(self, p, rows, arrays):
        self.p, self.rows, self.arrays = p, rows, list(arrays)
        self.name = f"attention-{uuid4().hex}"
        self.graph = {}

    def state(self, query, keys):
        """Return the state, whose fields are dask arrays.

        ``query`` is the key of a task; ``keys`` are positions, each with a task that returns their keys and values.
        """
        p = self.p
        shape = (*p.rows_shape[:-1], len(self.rows))
        parts = ((Part(self.rows, cols, p.offset), pair) for cols, pair in keys)
        seen = (each for each in parts if each[0].relation(p.xp, p.mask) is not Relation.NONE)
        states = [self._block(part, query, pair) for part, pair in seen]
        states = states or [self._add((partial(_no_keys, shape, p.value.shape[-1], p.compute_dtype),))]
        while len(states) > 1:
            pairs = [states[at : at + 2] for at in range(0, len(states), 2)]
            states = [self._add((_merged, *pair)) if len(pair) == 2 else pair[0] for pair in pairs]
        sink = () if p.sink is None else (self._whole(p.sink),)
        root = self._add((partial(_finished, p.query.dtype), states[0], *sink))
        graph = HighLevelGraph.from_collections(self.name, self.graph, dependencies=self.arrays)
        made = ((0, (*shape, p.value.shape[-1]), p.query.dtype), (1, shape, p.compute_dtype))
        return AttentionState(*(self._array(graph, root, *each) for each in made))

    def _block(self, part, query, pair):
        p, of_options = self.p, []
        options = {
            "mask": part.mask(p.xp, p.mask),
            "bias": part.bias(p.xp, p.bias),
            "weight_dropout": part.dropout(p.xp, p.dropout),
            "query_offset": part.query_offset,
            "scale": p.scale,
            "softcap": p.softcap,
        }
        options = map_arrays(options, lambda x: of_options.append(self._whole(x)) or _PLACE)
        return self._add((partial(_block_state, options), query, pair, *of_options))

    def _whole(self, x):
        """Return the key of the task that computes a small array."""
        x = x.rechunk(-1)
        self.arrays.append(x)
        return (x.name, *[0] * x.ndim)

    def _add(self, task):
        key = (self.name, len(self.graph))
        self.graph[key] = task
        return key

    def _array(self, graph, root, at, shape, dtype):
        name = f"{self.name}-{AttentionState._fields[at]}"
        graph = HighLevelGraph.from_collections(name, {name: (itemgetter(at), root)}, [Delayed(root, graph, layer=self.name)])
        return da.from_delayed(Delayed(name, graph), shape, dtype)


# tasks


def _block_state(options, query, pair, *arrays):
    """Return attention of a block in the dtype of its lse; ``arrays`` are those of the options, in their order."""
    remaining = iter(arrays)
    options = map_arrays(options, lambda _: np.asarray(next(remaining)))  # an array without axes comes as a number
    # in an empty context: what the user demands by use_backend or use_kernel is meant for dask arrays
    out, lse = Context().run(partial(mha.attention_state, query, *pair, **options))
    return AttentionState(out.astype(lse.dtype, copy=False), lse)


def _no_keys(shape, value_dim, dtype):
    return AttentionState(np.zeros((*shape, value_dim), dtype), np.full(shape, -inf, dtype))


def _merged(a, b):
    return merge(np, a, b)


def _finished(dtype, state, sink=None):
    """Return a state with the sink, which is one more key whose value is 0, in the dtype of the query."""
    if sink is not None:
        lse = np.broadcast_to(sink.astype(state.lse.dtype)[:, None], state.lse.shape)
        state = merge(np, state, AttentionState(np.zeros_like(state.out), lse))
    return AttentionState(state.out.astype(dtype, copy=False), state.lse)
