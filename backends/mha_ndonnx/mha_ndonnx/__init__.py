"""ndonnx for mha-core: layers and text encoders that are written with mha-core are exported to ONNX."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from mha_core.plugin import Backend, Kernel, hookimpl

_OPTIONS = frozenset(
    {
        *("causal", "window", "key_lengths", "packed", "array_mask", "mask"),
        *("bias", "alibi", "relative_bias", "bias_term", "softcap", "sink"),
        *("lse", "grouped_query", "value_dim", "broadcast"),
    }
)


def _from_numpy(array: Any, device: Any) -> Any:
    import ndonnx

    return ndonnx.asarray(array, copy=True)


def _features(arrays: Sequence[Any]) -> frozenset[str]:
    """traced: an array holds no value. unknown_sizes: it has an axis of unknown length, which is None in its shape."""
    present = [x for x in arrays if x is not None]
    unknown = any(None in x.shape for x in present)
    traced = unknown or not all(_holds_value(x) for x in present)
    return frozenset(name for name, holds in (("traced", traced), ("unknown_sizes", unknown)) if holds)


def _holds_value(x: Any) -> bool:
    try:
        x.unwrap_numpy()
    except ValueError:
        return False
    return True


def _versions() -> Mapping[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("ndonnx", "spox", "onnxruntime")}


@hookimpl
def mha_backends():
    yield Backend(
        name="ndonnx",
        api=1,
        types=("ndonnx._array:Array",),
        namespace=lambda: import_module("mha_ndonnx.arrays").Namespace(),
        from_numpy=_from_numpy,
        to_numpy=lambda array: array.unwrap_numpy(),  # ValueError for an array of a graph, which holds no value
        features=_features,
        versions=_versions,
        install="pip install ndonnx onnxruntime",
    )


@hookimpl
def mha_kernels():
    handles = _OPTIONS | {"traced", "unknown_sizes"}
    where = "mha_ndonnx.arrays"
    yield Kernel("ndonnx", "attention", "whole", 1, f"{where}:attention", handles=handles, supports=f"{where}:supports")
    handles = frozenset({"traced", "unknown_sizes"})
    yield Kernel("ndonnx", "gelu", "gelu", 1, f"{where}:gelu", handles=handles, supports=f"{where}:supports_gelu")


def export(function: Callable[..., Any], inputs: Mapping[str, tuple[str, Sequence[int | str]]]) -> Any:
    """Return the ONNX model of a function of arrays, such as a layer: ``onnx.ModelProto``.

    Parameters
    ----------
    function : returns an array, or arrays by name
        A single array is the output named ``"output"``. Weights inside must be ndonnx arrays: ``layer.to("ndonnx")``.
    inputs : the dtype and the shape of each argument, by the name of the input
        A size is an int, or the name of a size that is known only when the model runs, such as ``"length"``.
    """
    import ndonnx

    arrays = {name: ndonnx.argument(shape=tuple(shape), dtype=dtype) for name, (dtype, shape) in inputs.items()}
    results = function(*arrays.values())
    return ndonnx.build(arrays, dict(results) if isinstance(results, Mapping) else {"output": results})


def export_text_encoder(
    encoder: Any, *, batch: int | str = "batch", length: int | str = "length", normalize: bool | None = None
) -> Any:
    """Return the ONNX model of an ``mha_text.TextEncoder``, without its tokenizer.

    Its inputs are those of other exported encoders: ``input_ids`` (batch, length), and ``attention_mask``, of the same shape,
    0 for padding; both int64. Padding must follow the tokens. Its output is ``sentence_embedding`` (batch, d).

    ``batch`` and ``length``: ints, or names of sizes that are known only when the model runs. ``normalize``: as in ``encode``.
    """
    from .text import sentence_vectors

    return export(
        sentence_vectors(encoder, normalize), dict.fromkeys(("input_ids", "attention_mask"), ("int64", (batch, length)))
    )
