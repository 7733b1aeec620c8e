"""Random problems one after another; of one that fails, the smallest of its kind that fails too, and how to try it again.

Each problem is drawn from a seed of its own, so that a seed and the limits are all that is needed to have it back:

    python -m mha_core.conformance.smallest BACKEND CHECK DTYPE SEED '{"longest": 2}' [--kernel NAME] [--plugin MODULE] ...
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TypeAlias

import numpy as np

from ..dispatch.registry import register, registry
from .calls import BESIDE, FEATURES
from .judge import judge_poison, judge_problem, judge_weights
from .problems import Limits, Problem, random_problem
from .spy import watched
from .subject import Subject, find

Check: TypeAlias = Callable[[Subject, Problem, str], None]
CHECKS: dict[str, Check] = {"state": judge_problem, "weights": judge_weights, "poison": judge_poison}
SECONDS, EACH = 5.0, 40
"""How long smaller problems are sought for, and how many of each size are tried: a few hundred in all."""
QUICK_SECONDS = 0.5
"""After which a quick run draws no more: some libraries compile every operation anew for every shape that they meet."""
_FEW = ((2, 2, 1, 5, 5, 4, 4), (2, 1, 2, 3, 6, 4, 2))
_FEW_LONG = ((2, 1, 2, 33, 33, 64, 64),)
# (longest, widest, copies, masked, options, depth), the simplest first
_SIZES = [
    (1, 1, 1, 0.0, 0.0, 0), (2, 1, 1, 0.0, 0.0, 0), (1, 1, 1, 0.5, 0.2, 0), (2, 1, 1, 0.5, 0.2, 0), (2, 2, 2, 0.0, 0.0, 0),
    (2, 2, 2, 0.5, 0.3, 0), (3, 2, 1, 0.7, 0.3, 1), (4, 2, 2, 0.7, 0.3, 1), (6, 4, 2, 0.9, 0.3, 2),
]  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A problem that was drawn at random."""

    check: str
    dtype: str
    seed: int
    limits: Limits

    def problem(self) -> Problem:
        return random_problem(np.random.default_rng(self.seed), self.limits)

    def error(self, subject: Subject) -> Exception | None:
        """What its check says of it."""
        try:
            CHECKS[self.check](subject, self.problem(), self.dtype)
        except Exception as error:  # a kernel that crashes has failed as well
            return error
        return None

    def command(self, subject: Subject, kernel: str | None) -> str:
        """What tries this very problem again."""
        default = asdict(Limits())
        limits = {name: x for name, x in asdict(self.limits).items() if x != default[name]}
        words = ["python", "-m", "mha_core.conformance.smallest", subject.name, self.check, self.dtype, str(self.seed)]
        words += [json.dumps(limits)] * bool(limits)
        words += ["--kernel", kernel] if kernel else []
        words += ["--device", str(subject.device)] if subject.device is not None else []
        return shlex.join([*words, *(word for name in subject.plugins for word in ("--plugin", name))])


def judge_problems(
    subject: Subject,
    rng: np.random.Generator,
    count: int,
    dtype: str,
    *,
    check: str = "state",
    kernel: str | None = None,
    limits: Limits = Limits(),  # noqa: B008
) -> None:
    """So many random problems, fewer and of few shapes in a quick run; a failure carries the smallest that fails too.

    kernel: the one that is watched while this runs, for the command that tries it again.
    """
    if subject.quick and not limits.shapes:
        limits = replace(limits, shapes=_FEW_LONG if limits.longest > Limits.longest else _FEW)
    end = time.monotonic() + QUICK_SECONDS if subject.quick else math.inf
    for seed in rng.integers(2**32, size=subject.count(count)):
        if time.monotonic() > end:
            break
        drawn = Drawn(check, dtype, int(seed), limits)
        error = drawn.error(subject)
        if error is not None:
            error.add_note(_report(subject, drawn, kernel))
            raise error


def _report(subject: Subject, drawn: Drawn, kernel: str | None) -> str:
    found, error = smallest(subject, drawn)
    said = f"\n{type(error).__name__}: {error}" if error is not None else ""
    return f"the smallest that was found to fail: {found.problem()}{said}\ntry it again: {found.command(subject, kernel)}"


def smallest(subject: Subject, drawn: Drawn) -> tuple[Drawn, Exception | None]:
    """The smallest problem that was found to fail the same check, and what is said of it; if none, the one that is known."""
    end = time.monotonic() + SECONDS
    for limits in _smaller(drawn.limits):
        failing: list[tuple[float, Drawn, Exception]] = []
        for seed in range(EACH):
            if time.monotonic() > end:
                break
            one = replace(drawn, seed=seed, limits=limits)
            error = one.error(subject)
            if error is not None:
                failing.append((_size(one.problem()), one, error))
        if failing:
            return min(failing, key=lambda found: found[0])[1:]
    return drawn, None


def _smaller(limits: Limits) -> Iterator[Limits]:
    for longest, widest, copies, masked, options, depth in _SIZES:
        longest, widest = min(longest, limits.longest), min(widest, limits.widest)
        yield Limits(limits.times, longest, widest, copies, masked, options, depth)


def _size(p: Problem) -> float:
    """Numbers, and how much there is to write."""
    return p.query.size + p.key.size + p.value.size + len(str(p)) / 10


def main(arguments: list[str] | None = None) -> int:
    """Try one problem again: 1 where it fails, and what it is."""
    parser = argparse.ArgumentParser(prog="python -m mha_core.conformance.smallest", description=__doc__.partition("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("dtype")
    parser.add_argument("seed", type=int)
    parser.add_argument("limits", nargs="?", type=json.loads, default={})
    parser.add_argument("--kernel", help="of attention, brought before all others")
    parser.add_argument("--device")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    subject = find(given.backend, given.device, [given.dtype])
    limits = given.limits | {"shapes": tuple(map(tuple, given.limits.get("shapes", ())))}
    drawn = Drawn(given.check, given.dtype, given.seed, Limits(**limits))
    print(drawn.problem())
    kernels = [k for k in registry().kernels.get((subject.name, "attention"), []) if k.name == given.kernel]
    if given.kernel and not kernels:
        parser.error(f"no kernel of attention on {subject.name} is named {given.kernel!r}")
    if kernels:
        with watched(kernels[0], {*FEATURES, *BESIDE}):
            error = drawn.error(subject)
    else:
        error = drawn.error(subject)
    print("it is right" if error is None else f"{type(error).__name__}: {error}")
    return int(error is not None)


if __name__ == "__main__":
    sys.exit(main())
