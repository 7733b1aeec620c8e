"""Errors and warnings. Every message says what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the closest known one, or nothing."""
    from difflib import get_close_matches  # imported only for an error

    guess = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {guess[0]!r}?" if guess else ""


class MhaError(Exception):
    """The base class of this package's errors."""


class UnknownBackend(MhaError, LookupError):
    """No installed plugin provides a backend of this name."""


class UnknownDevice(MhaError, ValueError):
    """A backend has no such device."""

    in_command = ""
    """The message with the options of the command ``mha`` in place of Python's arguments."""


class BackendUnavailable(MhaError, ImportError):
    """The backend is registered, but its library cannot be used; the original cause is chained."""

    install = ""
    """The command that may help; empty if there is none."""


class NoDevice(MhaError, RuntimeError):
    """A library is installed but finds no device to run on, so installing it again would not help.

    A backend's ``namespace`` raises it with a message of one line that says what was found and what is needed.
    """


class BackendMismatch(MhaError, TypeError):
    """The library or device of an array does not match the call. Nothing is converted silently."""


class KernelUnsupported(MhaError, NotImplementedError):
    """A kernel was demanded by name and cannot compute the call."""


class UnknownKernel(KernelUnsupported, LookupError):
    """No installed plugin provides a kernel of this name."""


class KernelDivergence(MhaError, AssertionError):
    """Under ``verify``, a kernel and the algebra differ by more than rounding explains."""

    call: Any = None
    """The ``Call`` that was computed."""
    arguments: Mapping[str, Any] = {}
    """Its arrays by name."""
    options: Mapping[str, Any] = {}
    actual: Any = None
    """The result of the kernel."""
    expected: Any = None
    """The result of the algebra."""


class KernelWarning(RuntimeWarning):
    """A kernel is broken; another kernel or the algebra is used instead."""


class PluginApiMismatch(MhaError, ImportError):
    """A plugin was written for another version of the plugin contract."""
