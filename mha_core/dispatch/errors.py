"""What can go wrong on the way to a backend. Every message says what to type next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one that is probably meant, or nothing."""
    from difflib import get_close_matches  # imported on need, for an error's words

    guess = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {guess[0]!r}?" if guess else ""


class MhaError(Exception):
    """The base of all errors of this package's own."""


class UnknownBackend(MhaError, LookupError):
    """No installed plugin brings a backend of this name."""


class BackendUnavailable(MhaError, ImportError):
    """The backend is registered, but its library cannot be used; the original cause is chained.

    install: the command that may mend it, or nothing.
    """

    install = ""


class NoDevice(MhaError, RuntimeError):
    """A library is installed, but finds no device to run on: installing it again would not help, and is not suggested.

    The ``namespace`` of a plugin's backend raises it, in one line, with what was found and what is needed.
    """


class BackendMismatch(MhaError, TypeError):
    """Arrays of another library, or another device, than the call's. Nothing is ever converted silently."""


class KernelUnsupported(MhaError, NotImplementedError):
    """A kernel was asked for by name and cannot do the call."""


class UnknownKernel(KernelUnsupported, LookupError):
    """No installed plugin brings a kernel of this name."""


class KernelDivergence(MhaError, AssertionError):
    """Under ``verify`` a kernel and the algebra disagree by more than rounding explains.

    call: what was computed. arguments: its arrays, by name. options: the rest. actual, expected: the two results.
    """

    call: Any = None
    arguments: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    actual: Any = None
    expected: Any = None


class KernelWarning(RuntimeWarning):
    """A kernel is broken, and another, or the algebra, computes instead."""


class PluginApiMismatch(MhaError, ImportError):
    """A plugin was written for another version of the contract."""
