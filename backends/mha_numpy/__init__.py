"""The NumPy plugin: the backend and its kernels.

The namespace is NumPy with bfloat16 added. The plugin uses the plugin contract like any other. Importing this module does not
import NumPy; the functions that it names do.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Set
from importlib import import_module
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Kernel, hookimpl, write_rows


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


@hookimpl
def mha_backends() -> Iterable[Backend]:
    yield Backend(
        name="numpy",
        api=1,
        types=("numpy:ndarray",),
        namespace=lambda: import_module("mha_numpy.bfloat16").namespace(),
        parallel=_parallel,
        set_num_threads=lambda n: import_module("mha_numpy.cores").set_num_threads(n),
        refuses=_refuses,
        to_numpy=lambda array: array,
        devices=lambda: ["cpu"],
        version=lambda x: import_module("mha_numpy.version").version(x),
        synchronize=lambda: None,  # a call returns when its result is computed
        versions=_versions,
        install="pip install numpy",
        write=write_rows,
    )


_ATTENTION = ATTENTION_FEATURES - {"bias_term"} | {"mask_function", "score_function"}
_ATTENTION_VJP = _ATTENTION - {"lse"} | {"d_lse", "d_bias", "d_sink"}
_LAYER_VJP = STANDARD_LAYER_FEATURES - {f"feed_forward.activation={name}" for name in ("gelu_tanh", "silu")}

_KERNELS: tuple[tuple[str, str, str, str, Set[str]], ...] = (
    # op, name, module, what tells the limits, features
    ("attention", "tiles", "attention.kernel", "attention.kernel:supports", _ATTENTION | {"int8"}),
    ("attention_vjp", "tiles", "attention.gradients", "attention.gradients:supports", _ATTENTION_VJP),
    ("gelu", "tiles", "gelu", "gelu:supports", set()),
    ("gelu_vjp", "tiles", "gelu", "gelu:supports", set()),
    ("relu", "tiles", "relu", "relu:supports", set()),
    ("relu_vjp", "tiles", "relu", "relu:supports", set()),
    ("rotary", "tiles", "rotary", "norms:supports", set()),
    ("rotary_vjp", "tiles", "rotary", "rotary:supports_vjp", set()),
    ("linear", "chunks", "linear", "norms:supports", set()),
    ("linear", "half", "linear:linear_half", "linear:supports_half", set()),
    ("linear_vjp", "chunks", "linear", "norms:supports", set()),
    ("layer_norm", "chunks", "norms", "norms:supports", set()),
    ("layer_norm_vjp", "chunks", "norm_gradients", "norms:supports", set()),
    ("rms_norm", "chunks", "norms", "norms:supports", set()),
    ("rms_norm_vjp", "chunks", "norm_gradients", "norms:supports", set()),
    ("embedding_vjp", "sorted", "embedding", "norms:supports", set()),
    ("feed_forward", "chunks", "layers", "layers:supports", {"gate"}),
    ("feed_forward_vjp", "chunks", "layer_gradients", "layer_gradients:supports", set()),
    ("encoder_layer", "chunks", "layers", "layers:supports", STANDARD_LAYER_FEATURES),
    ("encoder_layer_vjp", "chunks", "layer_gradients", "layer_gradients:supports", _LAYER_VJP),
    ("adamw", "chunks", "updates", "relu:supports", set()),
)


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for op, name, where, supports, handles in _KERNELS:
        module, _, function = where.partition(":")
        yield Kernel(
            backend="numpy",
            op=op,
            name=name,
            api=1,
            load=f"mha_numpy.{module}:{function or op}",
            prepare="mha_numpy.attention.few_pairs:prepare" if op == "attention" else None,
            handles=frozenset(handles),
            supports=f"mha_numpy.{supports}",
        )
