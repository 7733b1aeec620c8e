"""How a call of attention becomes a problem and finds its kernel: in full once for each signature, then by one lookup."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..algebra import attention as algebra
from ..algebra.arrays import Array
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from ..algebra.visibility import without_unseen_keys
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import demands, watcher
from ..dispatch.kernels import decide
from ..dispatch.registry import on_change
from .operation import Kept, Plan, Run, describe, empty, gradient_recorded
from .prepare import prepare

LSE = "lse"
"""The feature of a call whose log-sum-exp is wanted; a kernel that lacks it may leave ``lse`` None."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A problem whose arrays are yet to come, and what was decided for it."""

    plan: Plan
    problem: AttentionProblem
    kept: tuple[Any, ...] | None
    """The index of the keys that any query can reach; None for all."""
    zeroes: bool
    """Whether keys that no query sees remain, and must be zeroed."""
    axes: tuple[int, ...]
    """How many query, key and value have."""

    def fill(self, query: Array, key: Array, value: Array, sink: Array | None) -> AttentionProblem:
        if 2 in self.axes:
            query, key, value = (x[None, :, :] if x.ndim == 2 else x for x in (query, key, value))
        if self.kept is not None:
            key, value = key[self.kept], value[self.kept]
        problem = self.problem.again(query, key, value, sink)
        return without_unseen_keys(problem) if self.zeroes else problem


_recipes: Kept = Kept()


@on_change
def _forget() -> None:
    global _recipes
    _recipes = Kept()


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    lse: bool,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    query_offset: Any = None,
    **unknown: Any,
) -> AttentionState:
    """Attention, validated and dispatched; without ``lse`` only ``out`` is sure to be there."""
    recipes, recipe, signature = _recipes, None, None
    if type(scale) in _NUMBERS and type(softcap) in _NUMBERS and type(query_offset) in _OFFSETS and not unknown:
        try:
            signature = (
                lse,
                demands.get(),
                gradient_recorded((query, key, value, sink)),
                None if mask is None else _key(mask),
                None if bias is None else _key(bias),
                (scale, softcap, query_offset),
                (type(query), query.shape, query.dtype, query.device),
                (type(key), key.shape, key.dtype, key.device),
                (type(value), value.shape, value.dtype, value.device),
                None if sink is None else (type(sink), sink.shape, sink.dtype, sink.device),
            )
            recipe = recipes.get(signature)
        except (AttributeError, TypeError):  # arrays in a mask, and what Operation names: prepared in full each time
            signature = None
    if recipe is not None:
        plan, problem, axes = recipe.plan, recipe.fill(query, key, value, sink), recipe.axes
    else:
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sink": sink, "query_offset": query_offset}
        backend, problem = prepare(query, key, value, **options, **unknown)
        plan, axes = _plan(backend, problem, lse), (query.ndim, key.ndim, value.ndim)
        if signature is not None:
            recipes.keep(signature, _recipe(plan, problem, key, axes))
    watch = watcher.get()
    state: AttentionState = plan.compute(problem) if watch is None else watch(_run(plan, problem))
    if axes != (2, 2, 2):
        return state
    out, log_sum = state
    return AttentionState(out[0, ...], log_sum if log_sum is None else log_sum[0, ...])


_NUMBERS = {type(None), float, int}  # and no bool: True and 1 are one key, but not one argument
_OFFSETS = {type(None), int}


def _key(term: Any) -> Hashable:
    """What a mask or bias is known by. Raises TypeError where it holds arrays, and AttributeError where it is one."""
    key: Hashable = term.key
    if key is None:
        raise TypeError("it says something new in each call")
    return key


def _plan(backend: LoadedBackend, p: AttentionProblem, lse: bool) -> Plan:
    given = {"query": p.query, "key": p.key, "value": p.value}
    optional = {} if p.sink is None else {"sink": p.sink}
    terms = [x for term in (p.mask, p.bias) if term is not None for _, x in term.arrays()]
    recorded = gradient_recorded((*given.values(), *optional.values(), *terms))
    structure = p.structure
    options = {"band": structure.band, "packed": structure.packed, "scale": p.scale, "softcap": p.softcap}
    features = p.features | ({LSE} if lse else frozenset())
    call = describe("attention", given | optional, gradient=recorded, features=features, options=options)
    decision = decide(backend.name, call)
    return Plan(backend, call, decision, decision.run or algebra.attention_state)


def _recipe(plan: Plan, p: AttentionProblem, key: Array, axes: tuple[int, ...]) -> Recipe:
    keys, num_keys = p.structure.keys, key.shape[-2]
    kept = None if len(keys) == num_keys else (..., slice(keys.start, keys.stop), slice(None))
    bare: Any = dict.fromkeys(("query", "key", "value", "sink"))  # no array is kept
    zeroes = p.mask is not None and without_unseen_keys(p) is not p
    return Recipe(plan, p.again(**bare), kept, zeroes, axes)


def _run(plan: Plan, p: AttentionProblem) -> Run:
    def blank() -> AttentionState:
        out = empty(plan.backend, (*p.rows_shape, p.value.shape[-1]), p.query)
        return AttentionState(out, p.xp.astype(out[..., 0] if out.shape[-1] else p.xp.zeros(p.rows_shape), p.compute_dtype))

    arguments: Mapping[str, Any] = {"query": p.query, "key": p.key, "value": p.value, "sink": p.sink}
    return Run(
        backend=plan.backend,
        call=plan.call,
        decision=plan.decision,
        arguments=arguments,
        options={
            "mask": p.mask,
            "bias": p.bias,
            "scale": p.scale,
            "softcap": p.softcap,
            "query_offset": p.offset,
            "problem": p,
        },
        compute=partial(plan.compute, p),
        algebra=partial(algebra.attention_state, p),
        empty=blank,
    )
