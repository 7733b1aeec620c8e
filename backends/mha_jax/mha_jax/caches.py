"""Caches of keys and values as arguments and results of compiled functions: pytrees of their arrays."""

from typing import Any

import jax
import jax.numpy as jnp

from mha_core import DecoderCache, Int8Rows, KeyValueCache

_PARTS = ("key", "value", "context", "filled")
_SETTINGS = ("whole", "window", "dtype", "capacity")


def _flat(cache: KeyValueCache) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the arrays and the settings of a cache. The weights that filled it are left out: they are not compared again."""
    return [getattr(cache, name) for name in _PARTS], tuple(getattr(cache, name) for name in _SETTINGS)


def _cache(settings: tuple[Any, ...], arrays: list[Any]) -> KeyValueCache:
    cache = object.__new__(KeyValueCache)  # without checks: JAX puts other objects in place of arrays
    named = dict(zip((*_PARTS, *_SETTINGS), (*arrays, *settings), strict=True))
    vars(cache).update(named, source={}, _stores=None)
    return cache


def write_at(x: Any, start: Any, rows: Any) -> Any:
    """``Backend.write_at``; in place where a compiled function owns x."""
    return jax.lax.dynamic_update_slice_in_dim(x, rows, start, axis=x.ndim - 2)


def namespace() -> Any:
    """Return jax.numpy, once caches are known to JAX."""
    register = jax.tree_util.register_pytree_node
    register(KeyValueCache, _flat, _cache)
    settings = ("window", "dtype", "capacity")
    register(
        DecoderCache,
        lambda cache: ([cache.layers], tuple(getattr(cache, name) for name in settings)),
        lambda values, children: DecoderCache(*children, **dict(zip(settings, values, strict=True))),
    )
    register(Int8Rows, lambda rows: ([rows.values, rows.scale], None), lambda _, arrays: Int8Rows(*arrays))
    return jnp
