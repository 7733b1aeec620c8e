"""JAX for mha-core: the backend of ``mha_jax.backend`` with JAX's own gradients, and kernels in bounded memory under jit."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version

from mha_core.plugin import Collectives, Kernel, hookimpl

from . import backend as plain

_OPTIONS = frozenset(
    {
        *("causal", "window", "key_lengths", "packed", "array_mask", "mask", "mask_function"),
        *("bias", "alibi", "relative_bias", "bias_term", "score_function", "softcap", "sink"),
        *("grouped_query", "value_dim", "broadcast", "weight_dropout"),
    }
)
FEATURES: Mapping[str, frozenset[str]] = {
    "attention": _OPTIONS | {"lse", "gradient", "vmap", "traced"},
    "attention_vjp": _OPTIONS | {"d_lse", "d_bias", "d_sink", "gradient", "forward_gradient", "vmap", "traced"},
}


def value_and_grad(function, arrays):
    import jax

    (value, aux), gradients = jax.value_and_grad(function, has_aux=True)(arrays)
    return value, aux, gradients


def _calls(module, name):
    return lambda *arguments: getattr(import_module(module), name)(*arguments)


@hookimpl
def mha_backends():
    for backend in plain.mha_backends():
        caches = {name: _calls("mha_jax.caches", name) for name in ("namespace", "write_at")}
        yield replace(
            backend,
            **caches,
            value_and_grad=value_and_grad,
            transforms={name: _calls("mha_jax.transforms", name) for name in ("gradient", "vmap")},
            versions=lambda: {name: version(name) for name in ("jax", "jaxlib")},
            clear_caches=_calls("jax", "clear_caches"),
        )


@hookimpl
def mha_kernels():
    for op, features in FEATURES.items():
        yield Kernel("jax", op, "scan", 1, f"mha_jax.scan:{op}", handles=features, supports="mha_jax.scan:supports")
    yield Kernel("jax", "linear_int8", "inference", 1, "mha_jax.int8:linear_int8")


@hookimpl
def mha_collectives():
    yield Collectives("jax", 1, ("builtins:str",), "mha_jax.ranks:Axis")  # the name of an axis, inside jax.shard_map
