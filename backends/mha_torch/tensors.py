"""A problem without its tensors: torch must receive all tensors that a function depends on as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from mha_core.plugin import AttentionProblem

_LEARNED = ("query", "key", "value", "sink")


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor."""

    number: int


class ProblemOutline:
    """A problem, with numbers in place of its tensors."""

    def __init__(self, p: AttentionProblem) -> None:
        self.tensors: list[Tensor] = []
        """The tensors of the problem, which the caller takes."""

        def put(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            self.tensors.append(x)
            return _Slot(len(self.tensors) - 1)

        self._problem = _mapped(p, put)
        bias = self._problem.bias
        named = {name: getattr(self._problem, name) for name in _LEARNED}
        self.names: dict[int, tuple[str, int | None]] = {
            slot.number: (name, None) for name, slot in named.items() if slot is not None
        }
        """For tensors with a gradient, by number: the field of ``AttentionGradients``, and a place in it if it has several."""
        if bias is not None and not bias.is_added:
            self.names |= {slot.number: ("bias", at) for at, slot in enumerate(bias.inputs)}
        elif bias is not None:
            self.names |= {slot.number: ("bias", None) for slot in vars(bias).values() if isinstance(slot, _Slot)}

    def problem(self, tensors: Sequence[Tensor]) -> AttentionProblem:
        """Return the problem with these tensors."""
        whole: AttentionProblem = _mapped(self._problem, lambda x: tensors[x.number] if isinstance(x, _Slot) else x)
        return whole


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value with ``function`` applied to all that is no dataclass or tuple, in any depth; itself if none changes."""
    if type(value) is tuple:
        mapped = tuple(_mapped(each, function) for each in value)
        return value if all(x is y for x, y in zip(mapped, value, strict=True)) else mapped
    if not is_dataclass(value) or isinstance(value, _Slot) or not hasattr(value, "__dict__"):
        return function(value)
    old = {field.name: getattr(value, field.name) for field in fields(value)}
    new = {name: _mapped(each, function) for name, each in old.items()}
    if all(new[name] is old[name] for name in old):
        return value
    copy = object.__new__(type(value))
    object.__setattr__(copy, "__dict__", {**value.__dict__, **new})  # what it computed once, it keeps
    return copy
