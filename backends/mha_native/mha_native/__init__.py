"""The native plugin: compiled attention for NumPy arrays and torch tensors on the CPU; GELU, norms and layers of NumPy arrays.

Importing this module imports neither an array library nor the compiled module; the functions that it names do.
"""

from collections.abc import Iterable

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


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for backend in ("numpy", "torch"):
        yield Kernel(
            backend=backend,
            op="attention",
            name="native",
            api=1,
            load=f"mha_native.on_{backend}:attention",
            prepare=f"mha_native.on_{backend}:prepare",
            supports=f"mha_native.on_{backend}:supports",
            handles=HANDLES,
            priority=10,
        )
        yield Kernel(
            backend=backend,
            op="attention_vjp",
            name="native",
            api=1,
            load=f"mha_native.on_{backend}:attention_vjp",
            supports=f"mha_native.on_{backend}:supports",
            handles=HANDLES - {"lse", "broadcast"} | {"d_lse", "d_sink"},
            priority=10,
        )
    for op, supports, handles in (
        ("gelu", "supports_gelu", ()),
        ("gelu_vjp", "supports_gelu", ()),
        ("layer_norm", "supports", ()),
        ("rms_norm", "supports", ()),
        ("feed_forward", "supports", ("gate",)),
        ("encoder_layer", "supports", STANDARD_LAYER_FEATURES),
    ):
        yield Kernel(
            backend="numpy",
            op=op,
            name="native",
            api=1,
            load=f"mha_native.on_numpy_lines:{op}",
            supports=f"mha_native.on_numpy_lines:{supports}",
            handles=frozenset(handles),
            priority=10,
        )
