"""The native plugin: compiled attention for NumPy, torch and JAX arrays on the CPU, linear maps, and layers.

Importing this module imports neither an array library nor the compiled module; the functions that it names do.
"""

from collections.abc import Iterable, Set

from mha_core.plugin import STANDARD_LAYER_FEATURES, Kernel, hookimpl

HANDLES = frozenset(
    {
        *("lse", "causal", "window", "key_lengths", "packed", "array_mask", "bias", "alibi", "relative_bias"),
        *("softcap", "sink", "grouped_query", "value_dim", "broadcast"),
    }
)
"""The features of attention that the kernel computes: all but masks and biases of other kinds.

Its gradients are computed for all of them but batch axes that broadcast; those of biases are not.
"""


_VJP = HANDLES - {"lse", "broadcast"} | {"d_lse", "d_sink"}
_MASKS = frozenset({"mask", "mask_function"})
"""Masks of other kinds, which are evaluated before the kernel runs, and so not for programs that are compiled."""
_IN_PROGRAMS = frozenset({"traced", "vmap"})
"""For JAX, whose compiled programs call the kernel. Its gradients are those of ``attention_vjp``, which has none itself."""

_KERNELS: tuple[tuple[str, str, str, str, Set[str]], ...] = (
    # backend, op, module, what tells the limits in it, features
    ("numpy", "attention", "on_numpy", "supports", HANDLES | _MASKS | {"int8"}),
    ("numpy", "attention_vjp", "on_numpy", "supports", _VJP | _MASKS),
    ("torch", "attention", "on_torch", "supports", HANDLES | _MASKS | {"int8"}),
    ("torch", "attention_vjp", "on_torch", "supports", _VJP | _MASKS),
    ("jax", "attention", "on_jax", "supports", HANDLES | _IN_PROGRAMS | {"gradient"}),
    ("jax", "attention_vjp", "on_jax", "supports", _VJP | _IN_PROGRAMS),
    ("numpy", "gelu", "on_numpy_lines", "supports_gelu", set()),
    ("numpy", "gelu_vjp", "on_numpy_lines", "supports_gelu", set()),
    ("numpy", "layer_norm", "on_numpy_lines", "supports", set()),
    ("numpy", "rms_norm", "on_numpy_lines", "supports", set()),
    ("numpy", "linear", "on_numpy_few_rows", "supports", set()),
    ("torch", "linear", "on_torch_few_rows", "supports", set()),
    ("numpy", "linear_int8", "on_numpy_int8", "supports", set()),
    ("torch", "linear_int8", "on_torch_int8", "supports", set()),
    ("numpy", "feed_forward", "on_numpy_lines", "supports_layers", {"gate", "int8"}),
    ("numpy", "encoder_layer", "on_numpy_lines", "supports_layers", STANDARD_LAYER_FEATURES | {"int8"}),
    ("torch", "feed_forward", "on_torch_lines", "supports", {"gate", "int8"}),
    ("torch", "encoder_layer", "on_torch_lines", "supports", STANDARD_LAYER_FEATURES | {"int8"}),
)


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for backend, op, module, supports, handles in _KERNELS:
        yield Kernel(
            backend=backend,
            op=op,
            name="native",
            api=1,
            load=f"mha_native.{module}:{op}",
            prepare=f"mha_native.{module}:prepare" if op == "attention" else None,
            supports=f"mha_native.{module}:{supports}",
            handles=frozenset(handles),
            priority=10,
        )
