"""How a call of attention becomes a problem and finds its kernel: in full once for each signature, then by one lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from ..algebra import attention as algebra
from ..algebra.arrays import Array, Index
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from ..algebra.visibility import has_unseen_keys, without_unseen_keys
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import demands, watcher
from ..dispatch.kernels import decide
from .operation import Kept, Plan, Run, by_name, describe, empty, features_of, is_hashable, keep
from .prepare import prepare

LSE = "lse"
"""The feature of a call whose log-sum-exp is wanted; a kernel that lacks it may leave ``lse`` None."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A problem whose arrays are yet to come, and what was decided for it."""

    plan: Plan
    fields: dict[str, Any]
    """The problem's own, without arrays."""
    kept: tuple[Any, ...] | None
    """The index of the keys that any query can reach; None for all."""
    zeroes: bool
    """Whether keys that no query sees remain, and must be zeroed."""
    as_given: bool
    """Whether query, key and value go into the problem as they come."""
    headless: bool
    """Whether they have two axes each, and so has the answer."""
    direct: Callable[..., AttentionState] | None
    """What needs no problem: the kernel as it was prepared, where it computes with the arrays as they come."""

    def fill(self, query: Array, key: Array, value: Array, sink: Array | None) -> AttentionProblem:
        if not self.as_given:
            query, key, value = (x[None, :, :] if x.ndim == 2 else x for x in (query, key, value))
            if self.kept is not None:
                key, value = key[self.kept], value[self.kept]
        fields = self.fields.copy()
        fields["query"], fields["key"], fields["value"], fields["sink"] = query, key, value, sink
        problem = _new(AttentionProblem)  # several times faster than its __init__, which sets one field at a time
        _set(problem, "__dict__", fields)
        return without_unseen_keys(problem) if self.zeroes else problem


_new, _set = object.__new__, object.__setattr__
_recipes = Kept()


def attend(query: Any, key: Any, value: Any, options: Mapping[str, Any], *, lse: bool) -> AttentionState:
    """Attention, validated and dispatched; without ``lse`` only ``out`` is sure to be there."""
    recipes, recipe, sink = _recipes.now, None, None
    signature: tuple[Any, ...] | None
    try:
        said = None
        if options:
            said, sink = _said(**options), options.get("sink")
        signature = (
            lse,
            said,
            demands.get(),
            features_of((query, key, value, sink)),
            type(query),
            query.shape,
            query.dtype,
            query.device,
            type(key),
            key.shape,
            key.dtype,
            key.device,
            type(value),
            value.shape,
            value.dtype,
            value.device,
        )
        recipe = recipes.get(signature)
    except (AttributeError, TypeError):  # arrays in a mask, and what Operation names
        signature, sink = _signature_by_name(query, key, value, options, lse), options.get("sink")
        recipe = None if signature is None else recipes.get(signature)  # without one, prepared in full each time
    watch = watcher.get()
    if recipe is not None:
        if watch is None and recipe.direct is not None:
            return recipe.direct(query, key, value, sink)
        problem = recipe.fill(query, key, value, sink)
    else:
        backend, problem = prepare(query, key, value, **options)
        problem = replace(problem, asked=_asked(problem, lse))
        repeats = signature is not None
        recipe = _recipe(_plan(backend, problem, repeats), problem, key, (query.ndim, key.ndim, value.ndim), repeats)
        if repeats:
            keep(recipes, signature, recipe)
    state: AttentionState = recipe.plan.compute(problem) if watch is None else watch(_run(recipe.plan, problem))
    if not recipe.headless:
        return state
    out, log_sum = state
    return AttentionState(out[0, ...], log_sum if log_sum is None else log_sum[0, ...])


def _signature_by_name(query: Any, key: Any, value: Any, options: Mapping[str, Any], lse: bool) -> tuple[Any, ...] | None:
    """Where devices have no hash; None where there is more that cannot be part of one."""
    known = by_name((query, key, value, options.get("sink")))
    if not known:
        return None
    try:
        said = _said(**{**options, "sink": None})
    except (AttributeError, TypeError):
        return None
    signature = (lse, said, demands.get(), *known)
    return signature if is_hashable(signature) else None


def _said(
    mask: Any = None, bias: Any = None, scale: Any = None, softcap: Any = None, sink: Any = None, query_offset: Any = None
) -> tuple[Any, ...]:
    """What options add to a signature. Raises TypeError or AttributeError for what is no part of one: arrays, and mistakes."""
    plain = scale is softcap is query_offset is None
    if not plain:
        _check_types(scale, softcap, query_offset)
    return (
        None if mask is None else mask.key or _says_something_new(),
        None if bias is None else bias.key or _says_something_new(),
        None if plain else (scale, softcap, query_offset),
        None if sink is None else (type(sink), sink.shape, sink.dtype, sink.device),
    )


def _check_types(scale: Any, softcap: Any, query_offset: Any) -> None:
    """No bool, for True and 1 are one key but not one argument, nor an array, which may hold another number each time."""
    numbers = {type(None), float, int}
    if type(scale) not in numbers or type(softcap) not in numbers or type(query_offset) not in {type(None), int}:
        raise TypeError


def _says_something_new() -> NoReturn:
    """Of a mask or bias without a key: it holds arrays, which may be others in each call."""
    raise TypeError


def _asked(p: AttentionProblem, lse: bool) -> frozenset[str]:
    terms = (x for term in (p.mask, p.bias) if term is not None for _, x in term.arrays())
    asked = features_of((p.query, p.key, p.value, p.sink, *terms))
    return asked | {LSE} if lse else asked


def _plan(backend: LoadedBackend, p: AttentionProblem, repeats: bool) -> Plan:
    given = {"query": p.query, "key": p.key, "value": p.value} | ({} if p.sink is None else {"sink": p.sink})
    options = {"band": p.structure.band, "packed": p.structure.packed, "scale": p.scale, "softcap": p.softcap}
    options["query_offset"] = p.offset if isinstance(p.offset, int) else None  # None: an array
    call = describe("attention", given, features=p.features, options=options)
    decision = decide(backend.name, call)
    prepared = decision.prepare(p) if repeats and decision.prepare is not None else None
    return Plan(
        backend, call, decision, _Prepared(prepared) if prepared is not None else decision.run or algebra.attention_state
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kernel prepared for a signature, called with a problem as any other."""

    compute: Callable[..., AttentionState]

    def __call__(self, p: AttentionProblem) -> AttentionState:
        return self.compute(p.query, p.key, p.value, p.sink)


def _recipe(plan: Plan, p: AttentionProblem, key: Array, axes: tuple[int, ...], repeats: bool) -> Recipe:
    keys, num_keys = p.structure.keys, key.shape[-2]
    kept = None if len(keys) == num_keys else (..., slice(keys.start, keys.stop), slice(None))
    as_given = 2 not in axes and kept is None
    zeroes = repeats and p.mask is not None and has_unseen_keys(p)  # to look at arrays would take as long as to use them
    return Recipe(
        plan=plan,
        fields=vars(p) | dict.fromkeys(("query", "key", "value", "sink")),  # no array is kept
        kept=kept,
        zeroes=zeroes,
        as_given=as_given,
        headless=axes == (2, 2, 2),
        direct=plan.compute.compute if isinstance(plan.compute, _Prepared) and as_given and not zeroes else None,
    )


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


def attend_weights(
    backend: LoadedBackend, p: AttentionProblem, lse: Array | None, rows: Index, cols: Index, num_keys: int
) -> Array:
    """The weights of a prepared problem; a kernel receives the same four arguments and ``num_keys``, the caller's keys."""
    given = {"query": p.query, "key": p.key} | ({} if lse is None else {"lse": lse})
    asked = features_of((*given.values(), p.sink))
    options = {"num_rows": len(rows), "num_cols": len(cols)}
    call = describe("attention_weights", given, features=asked | (p.features - {"value_dim"}), options=options)
    decision = decide(backend.name, call)
    compute = partial(decision.run or algebra.attention_weights, p, lse, rows, cols, num_keys)
    watch = watcher.get()
    if watch is None:
        return compute()
    zeros = partial(empty, backend, (*p.rows_shape[:-1], len(rows), len(cols)), p.query)
    plain = partial(algebra.attention_weights, p, lse, rows, cols, num_keys)
    return watch(Run(backend, call, decision, given, {"mask": p.mask, "bias": p.bias}, compute, plain, zeros))
