"""Contenders and problems for tests of the benchmark against other libraries; separate processes import them."""

import os
from dataclasses import dataclass
from pathlib import Path

from mha_conformance.bench.timing import Work


@dataclass(frozen=True)
class Sum:
    """The sum of the numbers below ``count``; an answer may differ by ``bound``."""

    count: int
    bound: int = 0
    limit = None

    def judge(self):
        expected = sum(range(self.count))

        def check(answer):
            assert abs(answer - expected) <= self.bound, f"the sum is {answer}; expected {expected}"

        return check


def builtin(problem):
    return Work(lambda: sum(range(problem.count)), lambda total: total)


def repeated(problem, times):
    """Compute the sum ``times`` times."""
    return Work(lambda: [sum(range(problem.count)) for _ in range(int(times))][-1], lambda total: total)


def off_by(problem, error):
    return Work(lambda: sum(range(problem.count)) + int(error), lambda total: total)


def failing(problem, words):
    raise ValueError(words)


def later_off_by_one(problem, path):
    """Right in the first process, off by one in all later ones."""
    first = not Path(path).exists()
    Path(path).touch()
    return Work(lambda: sum(range(problem.count)) + (not first), lambda total: total)


def dying(problem, status):
    return Work(lambda: os._exit(int(status)), lambda answer: answer)


def process():
    return Work(os.getpid, lambda number: number)


def noted(problem, path):
    """Append the process id to a file."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    return builtin(problem)


def recorded(path, name):
    """Append ``name`` to a file in each call."""

    def call():
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    return Work(call, lambda answer: answer)


@dataclass(frozen=True)
class Total(Sum):
    """The sum as a problem for any backend; our answers are too large by ``error``."""

    error: int = 0

    def ours(self, backend):
        return off_by(self, self.error)

    def plain(self):
        return builtin(self)


def device(backend):
    """Replace ``limits.device``: raise for any backend except ``known``, as arrays without ``__dlpack_device__`` do."""
    if backend != "known":
        raise AttributeError("__dlpack_device__")
    return Work(lambda: 1, lambda number: number)
