"""Checks of the records that a plugin yields, when they arrive: a wrong one makes its plugin broken, and affects no other."""

from __future__ import annotations

from typing import Any

from .context import ALGEBRA
from .contract import API, Backend, Collectives, Kernel
from .errors import PluginApiMismatch
from .typed import field_types, fits, in_words

_FUNCTIONS = ("load", "prepare", "supports")
"""The fields of a record that may be ``"module:function"``."""


def check_record(record: Any, kind: Any) -> None:
    """Raise TypeError or ValueError, naming the field, unless a record is of this kind and its fields have the declared types.

    Raises PluginApiMismatch for a record that was written for another version of the contract.
    """
    if not isinstance(record, kind):
        raise TypeError(f"a plugin's hook yielded {record!r}; expected a {kind.__name__}")
    if record.api != API:
        raise PluginApiMismatch(
            f"{kind.__name__} {record.name!r} was written for api {record.api}, this mha-core has api {API}: "
            "install a version of the plugin, or of mha-core, that matches"
        )
    for name, declared in field_types(kind).items():
        value = getattr(record, name)
        if not fits(value, declared):
            raise TypeError(f"{name} of {_described(record)} is {value!r}; expected {in_words(declared)}")
    if not record.name:
        raise ValueError(f"name of {_described(record)} is empty; expected what users write")
    if isinstance(record, Kernel) and record.name == ALGEBRA:
        raise ValueError(
            f"a kernel for {record.op} is named {ALGEBRA!r}, which is reserved for the algebra: give it another name"
        )
    for field in _FUNCTIONS:
        function = getattr(record, field, None)
        parts = function.split(":") if isinstance(function, str) else ()
        if isinstance(function, str) and (len(parts) != 2 or not all(parts)):
            raise ValueError(f'{field} of {_described(record)} is {function!r}; expected "module:function"')


def _described(record: Backend | Collectives | Kernel) -> str:
    if isinstance(record, Kernel):
        return f"kernel {record.name!r} for {record.op} on {record.backend}"
    return f"{'backend' if isinstance(record, Backend) else 'collectives'} {record.name!r}"
