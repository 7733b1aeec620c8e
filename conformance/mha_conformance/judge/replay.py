"""Try a random problem again, drawn from its seed and its limits.

    python -m mha_conformance.judge.replay BACKEND CHECK DTYPE SEED '{"longest": 2}' [--kernel NAME] [--plugin MODULE] ...

The exit status is 1 if the problem fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np

from mha_core.plugin import register
from mha_core.shared import registry

from ..backend import BackendUnderTest
from ..cases.features import ALL_FEATURES
from ..cases.problems import Limits, RandomProblem, random_problem
from ..find import find
from ..probes.recorder import recorded
from .held import Judge, judge_of

CHECKS: dict[str, Callable[[Judge, RandomProblem], object]] = {
    "state": Judge.judge_once,
    "poison": Judge.assert_poison_changes_no_bit,
}


@dataclass(frozen=True)
class DrawnProblem:
    """A random problem by the seed and the limits that it was drawn with, and the check that judges it."""

    check: str
    dtype: str
    seed: int
    limits: Limits

    def problem(self) -> RandomProblem:
        """Draw the problem."""
        return random_problem(np.random.default_rng(self.seed), self.limits)

    def error(self, judge: Judge) -> Exception | None:
        """Return what its check raises; None if the answer is right."""
        try:
            CHECKS[self.check](judge, self.problem())
        except Exception as error:  # a kernel that crashes has failed as well
            return error
        return None

    def command(self, backend: BackendUnderTest, kernel: str | None) -> str:
        """Return the command line that tries this problem again."""
        default = asdict(Limits())
        limits = {name: x for name, x in asdict(self.limits).items() if x != default[name]}
        words = ["python", "-m", "mha_conformance.judge.replay", backend.name, self.check, self.dtype, str(self.seed)]
        words += [json.dumps(limits)] * bool(limits)
        words += ["--kernel", kernel] if kernel else []
        words += ["--device", str(backend.device)] if backend.device is not None else []
        return shlex.join([*words, *(word for name in backend.plugins for word in ("--plugin", name))])


def main(arguments: list[str] | None = None) -> int:
    """Print one problem and the result of its check; return 1 if it fails, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m mha_conformance.judge.replay", description=__doc__.partition("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("dtype")
    parser.add_argument("seed", type=int)
    parser.add_argument("limits", nargs="?", type=json.loads, default={})
    parser.add_argument("--kernel", help="the attention kernel to call before all others")
    parser.add_argument("--device")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    backend = find(given.backend, given.device, [given.dtype])
    limits = given.limits | {"shapes": tuple(map(tuple, given.limits.get("shapes", ())))}
    drawn = DrawnProblem(given.check, given.dtype, given.seed, Limits(**limits))
    print(drawn.problem())
    kernels = [k for k in registry().kernels.get((backend.name, "attention"), []) if k.name == given.kernel]
    if given.kernel and not kernels:
        parser.error(f"no attention kernel of {backend.name} is named {given.kernel!r}")
    with recorded(kernels[0], ALL_FEATURES) if kernels else nullcontext():
        error = drawn.error(judge_of(backend, drawn.dtype, np.random.default_rng(0)))
    print("the answer is right" if error is None else f"{type(error).__name__}: {error}")
    return int(error is not None)


if __name__ == "__main__":
    sys.exit(main())
