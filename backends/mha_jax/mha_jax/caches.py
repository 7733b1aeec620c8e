"""Caches of keys and values as arguments and results of compiled functions: pytrees of their arrays."""

from importlib import import_module
from typing import Any

import jax

from mha_core import DecoderCache, Int8Rows, KeyValueCache

_SETTINGS = ("window", "dtype", "capacity")
_LEAVES = ("key", "value", "context", "filled")
"""The arrays of a KeyValueCache. The weights that they were computed with are left out, and not compared again."""


def _register(kind: type, leaves: tuple[str, ...], settings: tuple[str, ...], **others: Any) -> None:
    """Make a class of caches a pytree of these fields, with the settings as its structure."""

    def flatten(cache: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(cache, name) for name in leaves], tuple(getattr(cache, name) for name in settings)

    def unflatten(values: tuple[Any, ...], children: list[Any]) -> Any:
        cache = object.__new__(kind)  # without checks: JAX puts other objects in place of arrays
        vars(cache).update(zip((*leaves, *settings), (*children, *values), strict=True), **others)
        return cache

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)


_register(KeyValueCache, _LEAVES, (*_SETTINGS, "whole"), source={}, _stores=None)
_register(DecoderCache, ("layers",), _SETTINGS)
_register(Int8Rows, ("values", "scale"), ())


def write_at(x: Any, start: Any, rows: Any) -> Any:
    """``Backend.write_at``; in place where a compiled function owns x."""
    return jax.lax.dynamic_update_slice_in_dim(x, rows, start, axis=x.ndim - 2)


def namespace() -> Any:
    """Return the namespace; JAX knows caches once this module is imported."""
    return import_module("mha_jax.namespace")
