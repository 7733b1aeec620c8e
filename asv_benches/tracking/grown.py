"""The functions whose counts changed between two commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mha_conformance.bench.instructions.count import Functions, functions

from .compiled import NATIVE, plugin
from .counting import installed, workplace

MOST = 8
"""Number of functions of each kind that are named."""


@dataclass(frozen=True)
class Growth:
    """The change of one function's count in one call."""

    name: str
    before: int
    after: int
    unit: str

    def __str__(self) -> str:
        return f"{self.after - self.before:+,} {self.unit} in {self.name} ({self.before:,} to {self.after:,})"


def growths(base: str, head: str, backend: str, cases: Sequence[str]) -> dict[str, list[Growth]]:
    """Return the functions of each case with the greatest changes, compiled ones first. Raises CannotCount and UserError."""
    sides = []
    for commit in (base, head):
        plugins = [plugin(commit)] if backend.endswith(NATIVE) else []
        with workplace(backend, installed(commit)) as folder:
            sides.append(functions(backend.removesuffix(NATIVE), cases, [folder / "source", *plugins], folder))
    before, after = sides
    return {case: between(before[case], after[case]) for case in cases if case in before and case in after}


def between(before: Functions, after: Functions) -> list[Growth]:
    """Return the functions with the greatest changes of either kind."""
    native = _greatest(before.native, after.native, "instructions")
    return native + _greatest(before.python, after.python, "bytecode instructions")


def _greatest(before: Mapping[str, int], after: Mapping[str, int], unit: str) -> list[Growth]:
    """Return the functions that changed most, greatest first; a change below a hundredth of the greatest is left out."""
    changes = [Growth(name, before.get(name, 0), after.get(name, 0), unit) for name in before.keys() | after.keys()]
    changes = [each for each in changes if each.before != each.after]
    changes.sort(key=lambda each: (-abs(each.after - each.before), each.name))
    largest = abs(changes[0].after - changes[0].before) if changes else 0
    return [each for each in changes[:MOST] if abs(each.after - each.before) > largest / 100]
