"""Errors for keywords of other libraries, which say what to write instead."""

from __future__ import annotations

from collections.abc import Mapping


def unknown(function: str, given: Mapping[str, object], hints: Mapping[str, str]) -> TypeError:
    """Return the error for the first keyword of ``given``, none of which ``function`` has, with its hint."""
    name = next(iter(given))
    hint = f": {hints[name]}" if name in hints else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
