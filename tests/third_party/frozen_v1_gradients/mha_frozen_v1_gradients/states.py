"""The states of the library. "traced" notes each function that is called; "coarse" rounds what ``matmul`` returns."""

from contextlib import contextmanager
from contextvars import ContextVar

states = ContextVar("states", default=frozenset())
trace = []
"""The names of the functions that were called in the state "traced"."""


@contextmanager
def within(*names):
    """In this block the library is in these states, and in no other."""
    token = states.set(frozenset(names))
    try:
        yield
    finally:
        states.reset(token)


def features(arrays):
    """The states, whatever the arrays: kernels must declare "traced", and are shielded from "coarse"."""
    return states.get()


def precise(function):
    """The same function, outside of the state "coarse"."""

    def run(*arguments, **options):
        with within(*states.get() - {"coarse"}):
            return function(*arguments, **options)

    return run
