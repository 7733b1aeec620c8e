"""Gradients: ``vjp`` of an operation, a layer, or any function made of them, and ``value_and_grad`` of a scalar function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial, wraps
from numbers import Number
from typing import Any

from ..algebra.arrays import Array, is_array
from ..algebra.int8 import Int8Weight
from ..autodiff.recorded import Recorded, plain_value
from ..autodiff.tape import Node, Tape, gradients
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import backend_of, check_floating, find_backend
from . import check
from .int8 import NO_GRADIENTS
from .positions import rotary
from .tree import Path, arrays_in, dotted, holds, map_arrays, map_placed, placed_arrays

_FIXED: dict[Any, frozenset[str]] = {rotary: frozenset({"cos", "sin"})}
"""Arguments of operations that are tables, not weights: ``vjp`` gives None for them."""


class Gradients(tuple[Any, ...]):
    """One gradient for each positional argument, and those of options by name."""

    options: Mapping[str, Any]


def vjp(
    what: Callable[..., Any], /, *arguments: Any, wrt: Callable[[str], bool] | None = None, **options: Any
) -> tuple[Any, Callable[[Any], Gradients]]:
    """Return ``what(*arguments, **options)`` and its pullback, which maps the gradient of the result to those of the arguments.

    Parameters
    ----------
    what : an operation, a layer, a text encoder, or a function made of these, of operators and of array-API functions
    *arguments, **options : those of the call
    wrt : function of a dotted name, such as ``layers.0.attention.w_q``
        Whether the gradient of a layer's weight, or of an operation's argument or option, is wanted. By default all are.

    Returns
    -------
    out
    pullback : function of d_out, in the form of ``out``; of a state, either array may be None
        Returns ``Gradients``: a tuple with one gradient for each positional argument, in its shape, dtype and device, and
        ``.options``, those of the bias and the sink by name. If ``what`` holds weights, its gradients come first, as a layer of
        the same class. There is None for what is not wanted, and for integers, booleans, masks and the tables of ``rotary``.
        It can be called any number of times.

    Raises
    ------
    TypeError
        For a function that has no derivative here; the message names it.
    ValueError
        For ``cache=``, and for a ``d_out`` of another shape than the result.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> out, pullback = mha.vjp(mha.relu, np.asarray([-1.0, 2.0]))
    >>> pullback(np.asarray([3.0, 3.0]))
    (array([0., 3.]),)
    """
    if not callable(what):
        raise TypeError(f"what is {type(what).__name__}; expected an operation, a layer, or a function made of these")
    layer_vjp = getattr(what, "vjp", None)
    if layer_vjp is not None and not isinstance(what, type):
        result: tuple[Any, Callable[[Any], Gradients]] = layer_vjp(*arguments, wrt=wrt, **options)
        return result
    return traced(what, arguments, options, wrt)


def traced(
    what: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any], wrt: Callable[[str], bool] | None
) -> tuple[Any, Callable[[Any], Gradients]]:
    """Return the result and the pullback of a call that is recorded on a tape."""
    holds_weights = is_dataclass(what) and not isinstance(what, type)
    values = (what, *arguments) if holds_weights else arguments
    places: list[Path] = [()] if holds_weights else []
    places += ((name,) for name in _names(what, len(arguments)))
    backend = _backend((*values, dict(options)))
    space = backend.recording.xp
    tape = space.tape()
    fixed = _FIXED.get(what, frozenset()) if not holds_weights else frozenset()

    def is_wanted(name: str, at: int) -> bool:
        if holds_weights and at:
            return True  # wrt is about the weights
        return name not in fixed and (wrt is None or wrt(name))

    def leaf(x: Any, wanted: bool) -> Any:
        return space.leaf(tape, x) if wanted and backend.is_floating(x.dtype) else x

    def with_leaves(at: int, value: Any) -> Any:
        return map_placed(value, lambda path, x: leaf(x, is_wanted(dotted(path), at)), places[at], learned=True)

    lifted = [with_leaves(at, value) for at, value in enumerate(values)]
    lifted_options = {key: map_arrays(value, partial(leaf, wanted=is_wanted(key, 1))) for key, value in options.items()}
    function = lifted[0] if holds_weights else what
    out = function(*(lifted[1:] if holds_weights else lifted), **lifted_options)

    def pullback(d_out: Any) -> Gradients:
        tape.check()
        leaf_gradients = gradients(backend.xp, dict(_starts(backend, tape, out, d_out)))

        def of(value: Any) -> Any:
            if not any(isinstance(x, Recorded) for x in arrays_in(value)):
                return None
            return map_arrays(value, lambda x: _gradient(backend, leaf_gradients, x))

        result = Gradients(map(of, lifted))
        result.options = {key: d for key, value in lifted_options.items() if (d := of(value)) is not None}
        return result

    result = map_arrays(out, partial(_released, tape))
    tape.use(map(plain_value, arrays_in(result)))
    return result, pullback


def _names(what: Any, count: int) -> list[str]:
    """Return the names of the positional arguments of a function, as its signature has them."""
    try:
        parameters = [p for p in inspect.signature(what).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    except (TypeError, ValueError):  # a function of C without a signature
        parameters = []
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [named[at] if at < len(named) else str(at) for at in range(count)]


def _backend(values: Any) -> LoadedBackend:
    """Return the backend of the floating arrays in values; all must agree."""
    floating: dict[str, Any] = {}
    if holds(values, Int8Weight):
        raise TypeError(NO_GRADIENTS)
    for path, x in placed_arrays(values).items():
        if isinstance(x, Recorded):
            raise TypeError("a gradient is recorded already: gradients of gradients need a library with its own, such as torch")
        backend = find_backend(x)
        if backend is None or backend.is_floating(x.dtype):
            name = dotted(path) or "x"
            floating[repr(path) if name in floating else name] = x
    if not floating:
        raise TypeError("no argument holds a floating array: there is nothing to differentiate by")
    return backend_of(floating)


def _gradient(backend: LoadedBackend, leaf_gradients: Mapping[Node, Any], x: Any) -> Any:
    """Return the gradient of a leaf, zeros if no result depends on it; None for any other array."""
    if not isinstance(x, Recorded):
        return None
    return leaf_gradients[x.node] if x.node in leaf_gradients else backend.xp.zeros_like(x.value)


def _released(tape: Tape, x: Any) -> Any:
    """Return what an array recorded on this tape holds; any other array, such as one of a tape around this one, as it is."""
    return x.value if isinstance(x, Recorded) and x.node.tape is tape else x


def _starts(backend: LoadedBackend, tape: Tape, out: Any, d_out: Any, name: str = "d_out") -> Iterable[tuple[Node, Any]]:
    """Yield the node and the gradient of each array of a result. Raises TypeError or ValueError if they do not fit."""
    if d_out is None:
        return
    if isinstance(out, tuple):
        if not isinstance(d_out, tuple | list) or len(d_out) != len(out):
            raise TypeError(
                f"{name} is {type(d_out).__name__}; expected {len(out)} gradients, as the result is {type(out).__name__}"
            )
        labels = getattr(out, "_fields", range(len(out)))
        for label, each, d in zip(labels, out, d_out, strict=True):
            yield from _starts(backend, tape, each, d, f"{name}.{label}")
        return
    value = plain_value(out)
    if isinstance(d_out, Number) and not value.shape:
        d_out = backend.xp.asarray(d_out, dtype=value.dtype)
    check_floating(**{"out": backend.xp.asarray(value), name: d_out})
    check.shape(name, d_out, tuple(value.shape), "the shape of the result")
    if isinstance(out, Recorded) and out.node.tape is tape:
        yield out.node, d_out


def as_node(layer: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the result of a layer that has its own ``vjp``, called on recorded arrays, as a node with its pullback."""
    values_by_name = {"": layer, **{f"{at}": x for at, x in enumerate(arguments)}}
    inputs = [(key, path, x) for key, value in values_by_name.items() for path, x in placed_arrays(value).items()]
    inputs += [(key, path, x) for key, value in options.items() for path, x in placed_arrays(value).items()]
    active = [(key, path, x) for key, path, x in inputs if isinstance(x, Recorded)]
    plain = map_arrays((layer, arguments, dict(options)), plain_value)
    out, pullback = plain[0].vjp(*plain[1], **plain[2])
    if not is_array(out):
        raise TypeError(f"the vjp of {type(layer).__name__} returned {type(out).__name__}; expected an array and a pullback")

    def pull(d: Any) -> list[Any]:
        argument_gradients = pullback(d)
        of = dict(zip(values_by_name, argument_gradients, strict=True)) | dict(getattr(argument_gradients, "options", {}))
        placed = {key: placed_arrays(value) for key, value in of.items()}
        return [placed.get(key, {}).get(path) for key, path, _ in active]

    return active[0][2].space.record(out, [x.node for _, _, x in active], pull, (x for _, _, x in inputs))


def value_and_grad(function: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., tuple[Any, Any]]:
    """Return a function that gives the value of ``function`` and its gradients with respect to the first argument.

    Parameters
    ----------
    function : called as ``function(first, *rest, **options)``; returns a scalar array
        ``first`` is a layer, an array, or a tuple, list or dict of them. The function may use operations of this package,
        operators, indexing, and functions of ``x.__array_namespace__()``; on NumPy and CuPy also functions of these libraries.
        It must not write into arrays.
    has_aux : bool
        Whether the function returns a pair: the scalar, and anything else, which is returned without gradients.

    Returns
    -------
    function of the same arguments
        Returns the value, or the pair, and gradients in the form of ``first``. There is None for integers, and for fixed
        tables such as those of ``Rotary``. Libraries with their own differentiation, such as torch and JAX, use it.

    Raises
    ------
    TypeError
        For a function without a known derivative, a write into an array, or a result that is not a floating array.
    ValueError
        For a result that is not a scalar.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> def loss(w, x):
    ...     return np.sum((x @ w) ** 2)
    >>> value, gradient = mha.value_and_grad(loss)(np.asarray([1.0, 2.0]), np.eye(2))
    >>> float(value), gradient
    (5.0, array([2., 4.]))
    """
    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}; expected a function that returns a scalar array")

    @wraps(function)
    def with_gradients(first: Any, *rest: Any, **options: Any) -> tuple[Any, Any]:
        backend = _backend(first)
        differentiate_natively = backend.record.value_and_grad
        leaves = {path: x for path, x in placed_arrays(first, learned=True).items() if backend.is_floating(x.dtype)}

        def filled(arrays: Mapping[Path, Any], missing: Callable[[Any], Any]) -> Any:
            return map_placed(first, lambda path, x: arrays[path] if path in arrays else missing(x))

        aux: Any = None

        def run(arrays: Iterable[Any]) -> tuple[Any, list[Any]]:
            nonlocal aux
            inputs = dict(zip(leaves, arrays, strict=True))
            result = function(filled(inputs, lambda x: x), *rest, **options)
            value, aux = result if has_aux else (result, None)
            _check_scalar(backend, value)
            return value, list(arrays_in(aux))

        differentiate = _by_tape(backend) if differentiate_natively is None else differentiate_natively
        value, plain, leaf_gradients = differentiate(run, list(leaves.values()))
        gradients = filled(dict(zip(leaves, leaf_gradients, strict=True)), lambda x: None)
        if not has_aux:
            return value, gradients
        of_aux = iter(plain)
        return (value, map_arrays(aux, lambda x: next(of_aux))), gradients

    return with_gradients


def _by_tape(backend: LoadedBackend) -> Callable[..., tuple[Any, Any, list[Any]]]:
    """Return the function that differentiates on a tape, for libraries without their own."""

    def differentiate(run: Callable[..., tuple[Any, Any]], arrays: list[Array]) -> tuple[Any, Any, list[Any]]:
        xp, space = backend.xp, backend.recording.xp
        tape = space.tape()
        leaves = [space.leaf(tape, x) for x in arrays]
        value, aux = run(leaves)
        result, *others = map(partial(_released, tape), (value, *aux))
        starts = {} if result is value else {value.node: xp.ones_like(result)}
        tape.check(once=True)
        leaf_gradients = gradients(xp, starts, once=True)
        return result, others, [_gradient(backend, leaf_gradients, x) for x in leaves]

    return differentiate


def _check_scalar(backend: LoadedBackend, value: Any) -> None:
    if not (hasattr(value, "shape") and hasattr(value, "dtype") and backend.is_floating(value.dtype)):
        raise TypeError(f"the function returned {type(value).__name__}; expected a floating array of shape (), the value")
    if tuple(value.shape):
        raise ValueError(f"the function returned an array of shape {tuple(value.shape)}; expected a scalar, such as its mean")
