"""The NumPy plugin: the backend and its kernels.

The namespace is NumPy with bfloat16 added. The plugin uses the plugin contract like any other. Importing this module does not
import NumPy; the functions that it names do.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Kernel, hookimpl


def _namespace() -> Any:
    from .bfloat16 import namespace

    return namespace()


def _versions() -> dict[str, str]:
    import numpy  # noqa: F401

    libraries = ("numpy", "ml_dtypes")  # ml_dtypes only if its bfloat16 is in use
    return {name: sys.modules[name].__version__ for name in libraries if sys.modules.get(name) is not None}


def _parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    from .threads import parallel

    return parallel(function, items)


def _refuses(x: Any) -> str | None:
    """Refuse subclasses with another arithmetic than arrays, and numbers in another byte order than the processor's."""
    import numpy

    masked = sys.modules.get("numpy.ma")  # imported if there is an array of it
    if isinstance(x, numpy.matrix):
        return "is a numpy.matrix, whose * is a matrix product: write numpy.asarray(...)"
    if masked is not None and isinstance(x, masked.MaskedArray):
        return (
            "is a masked array, and its mask would be ignored: write .filled(0); mask= of attention says which keys are visible"
        )
    if not x.dtype.isnative:
        return f"has dtype {x.dtype.str}, whose bytes are in another order: write .astype('{x.dtype.newbyteorder('=').name}')"
    return None


def _set_num_threads(n: int | None) -> None:
    from .cores import set_num_threads

    set_num_threads(n)


@hookimpl
def mha_backends() -> Iterable[Backend]:
    yield Backend(
        name="numpy",
        api=1,
        types=("numpy:ndarray",),
        namespace=_namespace,
        parallel=_parallel,
        set_num_threads=_set_num_threads,
        refuses=_refuses,
        to_numpy=lambda array: array,
        devices=lambda: ["cpu"],
        synchronize=lambda: None,  # a call returns when its result is computed
        versions=_versions,
        install="pip install numpy",
        elsewhere={op: {"native": "pip install ./backends/mha_native"} for op in ("attention", "attention_vjp")},
    )


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    yield Kernel(
        backend="numpy", op="gelu", name="tiles", api=1, load="mha_numpy.gelu:gelu", supports="mha_numpy.gelu:supports"
    )
    yield Kernel(
        backend="numpy",
        op="attention",
        name="tiles",
        api=1,
        load="mha_numpy.attention.kernel:attention",
        prepare="mha_numpy.attention.few_pairs:prepare",
        handles=ATTENTION_FEATURES - {"bias_term"},
        supports="mha_numpy.attention.kernel:supports",
    )
    yield Kernel(
        backend="numpy",
        op="attention_vjp",
        name="tiles",
        api=1,
        load="mha_numpy.attention.gradients:attention_vjp",
        handles=ATTENTION_FEATURES - {"bias_term", "lse"} | {"d_lse", "d_bias", "d_sink"},
        supports="mha_numpy.attention.gradients:supports",
    )
    yield Kernel(
        backend="numpy",
        op="linear",
        name="half",
        api=1,
        load="mha_numpy.linear:linear_half",
        supports="mha_numpy.linear:supports_half",
    )
    for op, name, module in (
        ("gelu_vjp", "tiles", "gelu"),
        ("relu", "tiles", "relu"),
        ("relu_vjp", "tiles", "relu"),
        ("linear_vjp", "chunks", "linear"),
        ("rotary", "tiles", "rotary"),
        ("layer_norm_vjp", "chunks", "norm_gradients"),
        ("rms_norm_vjp", "chunks", "norm_gradients"),
        ("embedding_vjp", "sorted", "embedding"),
    ):
        yield Kernel(
            backend="numpy",
            op=op,
            name=name,
            api=1,
            load=f"mha_numpy.{module}:{op}",
            supports=f"mha_numpy.{module}:supports",
        )
    yield Kernel(
        backend="numpy",
        op="rotary_vjp",
        name="tiles",
        api=1,
        load="mha_numpy.rotary:rotary_vjp",
        supports="mha_numpy.rotary:supports_vjp",
    )
    for op, module, handles in (
        ("linear", "linear", ()),
        ("layer_norm", "norms", ()),
        ("rms_norm", "norms", ()),
        ("feed_forward", "layers", ("gate",)),
        ("encoder_layer", "layers", STANDARD_LAYER_FEATURES),
        ("adamw", "updates", ()),
    ):
        yield Kernel(
            backend="numpy",
            op=op,
            name="chunks",
            api=1,
            load=f"mha_numpy.{module}:{op}",
            handles=frozenset(handles),
            supports=f"mha_numpy.{module}:supports",
        )
    activations = frozenset(f"feed_forward.activation={name}" for name in ("gelu_tanh", "silu"))
    for op, handles in (("feed_forward_vjp", frozenset[str]()), ("encoder_layer_vjp", STANDARD_LAYER_FEATURES - activations)):
        yield Kernel(
            backend="numpy",
            op=op,
            name="chunks",
            api=1,
            load=f"mha_numpy.layer_gradients:{op}",
            handles=handles,
            supports="mha_numpy.layer_gradients:supports",
        )
