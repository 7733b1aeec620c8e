"""The base of all optimisers: a step checks its arguments, updates weight after weight, and builds the new model."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeVar

from ..algebra.arrays import Array, Namespace, compute_dtype, device_name, device_of
from ..algebra.updates import clip_scale
from ..dispatch.errors import BackendMismatch
from ..dispatch.selection import backend_of, find_backend
from ..ops import check
from ..ops.hints import OPTIMISERS, check_keywords
from .weights import named_arrays, named_gradients, replaced

M = TypeVar("M")

Rate: TypeAlias = float | Callable[[int], float]
"""A learning rate, or a function from the number of a step, which counts from 0, to its learning rate."""


class _Use:
    """The record that a step has used a state up. Shallow copies of the state share this, as they share its moments."""

    happened = False


@dataclass(frozen=True, eq=False, repr=False)
class OptimiserState:
    """The memory of an optimiser from step to step; it can be pickled.

    A step writes into the moments, so it uses the state up: the next step needs the state that it returned. Keep
    ``copy.deepcopy(state)`` to come back to a state.
    """

    step: int = 0
    """The number of steps that were made."""
    moments: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    """The moments of each weight that has had a gradient, by its dotted name; (m, v) of AdamW, (m,) or () of SGD."""
    updates: dict[str, int] = field(default_factory=dict)
    """The number of updates of each of these weights."""
    _use: _Use = field(default_factory=_Use)

    @property
    def used(self) -> bool:
        """True if a step has used the state up. Its moments have then moved to the next state."""
        return self._use.happened

    def __repr__(self) -> str:
        return f"OptimiserState(step={self.step}, weights={len(self.updates)}{', used' if self.used else ''})"

    def _take(self) -> tuple[dict[str, tuple[Array, ...]], dict[str, int]]:
        """Use the state up; return its moments and the numbers of updates."""
        moments = dict(self.moments)
        self.moments.clear()  # where moments are not written in place, each is then freed after its update
        self._use.happened = True
        return moments, dict(self.updates)


class Optimiser(ABC):
    """The base of all optimisers."""

    learning_rate: Rate
    clip_norm: float | None

    def __new__(cls, *settings: Any, **named: Any) -> Self:
        """Raise TypeError for a name of torch, with ours."""
        check_keywords(cls.__name__, inspect.signature(cls.__init__).parameters, named, OPTIMISERS)
        return super().__new__(cls)

    def init(self, model: Any) -> OptimiserState:
        """Return the state before the first step.

        The moments of a weight are made when it has its first gradient: weights that are never trained take no memory.

        Raises ValueError for a model without floating arrays, or in which two arrays have the same dotted name.
        """
        if not any(map(_is_floating, named_arrays(model).values())):
            raise ValueError("the model contains no floating array, so there is nothing to train")
        return OptimiserState()

    def step(self, model: M, gradients: Any, state: OptimiserState) -> tuple[M, OptimiserState]:
        """Return the model after a step, and the next state.

        Parameters
        ----------
        model : array, layer, or a tuple, list, dict or frozen dataclass of these
            Its arrays are not written to. An array that occurs twice is two weights, each with its own gradient.
        gradients : the same structure
            Contains the gradient of each array, of the same shape, dtype and library; or None where an array, or a part of the
            model, is not to change. The new model then contains the identical object.
        state : OptimiserState
            From ``init`` or the last step. The step uses it up.

        Raises
        ------
        ValueError
            If the gradients or the state do not fit the model, the state is used up, or the learning rate of this step is not a
            finite number of at least 0.
        TypeError
            If a gradient is not an array or has another dtype than its weight, or the weight is not floating; BackendMismatch,
            a TypeError, if the gradient is of another library or on another device.
        """
        weights, by_name = named_arrays(model), named_gradients(model, gradients)
        trained = {name: weights[name] for name in by_name}
        xp = backend_of(trained).xp if trained else None
        for name, w in trained.items():
            _check_gradient(name, w, by_name[name])
        self._check_state(state, weights)
        rate = self._rate(state.step)
        scale = clip_scale(xp, by_name.values(), self.clip_norm) if trained and self.clip_norm is not None else 1.0

        moments, updates = state._take()
        new = {}
        for name, w in trained.items():
            before, count = moments.pop(name, None) or self._zeros(xp, w), updates.get(name, 0)
            inputs = (w, by_name[name], *before)
            new[name], *after = self._updated(xp, inputs, learning_rate=rate, step=count, gradient_scale=scale)
            moments[name], updates[name] = tuple(after), count + 1
        return replaced(model, new), OptimiserState(state.step + 1, moments, updates)

    def _zeros(self, xp: Namespace, w: Array) -> tuple[Array, ...]:
        """Return the moments of a weight before its first update."""
        dtype, device = compute_dtype(xp, w.dtype), device_of(w)
        return tuple(xp.zeros(tuple(w.shape), dtype=dtype, device=device) for _ in range(self._num_moments))

    def _updated(self, xp: Namespace, inputs: tuple[Array, ...], **options: Any) -> tuple[Array, ...]:
        if inputs[0].ndim:
            return self._update(xp, *inputs, **options)
        inputs = tuple(xp.reshape(x, (1,)) for x in inputs)  # NumPy returns scalars for arrays without axes
        return tuple(xp.reshape(x, ()) for x in self._update(xp, *inputs, **options))

    @property
    @abstractmethod
    def _num_moments(self) -> int:
        """The number of moments of each weight."""

    @abstractmethod
    def _update(
        self, xp: Namespace, w: Array, gradient: Array, *moments: Array, learning_rate: float, step: int, gradient_scale: Any
    ) -> tuple[Array, ...]:
        """Return the new weight and its new moments; it may write into the moments."""

    def _check_settings(self) -> None:
        """Raise TypeError or ValueError for settings that all optimisers have."""
        if not callable(self.learning_rate):
            check.at_least_zero("learning_rate", self.learning_rate)
        if self.clip_norm is not None:
            check.number("clip_norm", self.clip_norm, above_zero=True)

    def _rate(self, step: int) -> float:
        rate = self.learning_rate
        return check.at_least_zero(f"learning_rate({step})", rate(step)) if callable(rate) else rate

    def _check_state(self, state: OptimiserState, weights: Mapping[str, Array]) -> None:
        if not isinstance(state, OptimiserState):
            raise TypeError(f"state is {type(state).__name__}; expected what init or the last step returned")
        if state.used:
            raise ValueError(
                "the state is used up: a step writes into it, so continue with the state that the step returned, and keep "
                "copy.deepcopy(state) to come back to one"
            )
        for name, moments in state.moments.items():
            if name not in weights:
                raise ValueError(f"the state has moments of {name}, but the model has no array of this name: write init(model)")
            if len(moments) != self._num_moments:
                raise ValueError(
                    f"the state has {len(moments)} moments of {name}, but {self} needs {self._num_moments}: write init(model)"
                )
            w = weights[name]
            backend = find_backend(w)
            expected = (backend, tuple(w.shape), device_of(w), backend and compute_dtype(backend.xp, w.dtype))
            for x in moments:
                if (find_backend(x), tuple(x.shape), device_of(x), x.dtype) != expected:
                    raise ValueError(
                        f"the state has a moment of {name} that is {_described(x)}, but the weight is {_described(w)}: "
                        "write init(model)"
                    )


def _check_gradient(name: str, w: Array, gradient: Array) -> None:
    if not _is_floating(w):
        raise TypeError(f"{name} has dtype {w.dtype}, which is not floating; expected None as its gradient")
    if find_backend(gradient) is not find_backend(w) or device_of(gradient) != device_of(w):
        raise BackendMismatch(f"the gradient of {name} is {_described(gradient)}, but the weight is {_described(w)}")
    if tuple(gradient.shape) != tuple(w.shape):
        raise ValueError(
            f"the gradient of {name} has shape {tuple(gradient.shape)}; expected that of the weight, {tuple(w.shape)}"
        )
    if gradient.dtype != w.dtype:
        raise TypeError(f"the gradient of {name} has dtype {gradient.dtype}; expected that of the weight, {w.dtype}")


def _is_floating(x: Array) -> bool:
    backend = find_backend(x)
    return backend is not None and backend.is_floating(x.dtype)


def _described(x: Array) -> str:
    """Return an array's type, shape, dtype and device."""
    kind, device = type(x), device_name(x)
    return f"{kind.__module__}.{kind.__qualname__} of shape {tuple(x.shape)}, {x.dtype}{device and f', on {device}'}"
