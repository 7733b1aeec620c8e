"""The CuPy plugin, for CUDA GPUs. Everything runs on CuPy's current device and stream."""

from collections.abc import Iterable
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Kernel, NoDevice, hookimpl

from .certificate import record


def _namespace() -> Any:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        runtime.getDeviceCount()  # raises if there is no device
    except runtime.CUDARuntimeError as error:
        found = f"no CUDA device is available: {error}"
        raise NoDevice(f"{found}; cupy {cupy.__version__} is installed, but needs a CUDA GPU and its driver") from error
    from . import namespace

    return namespace


def _devices() -> list[Any]:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError:
        return []
    return [cupy.cuda.Device(at) for at in range(count)]


def _current_device() -> Any:
    import cupy

    return cupy.cuda.Device()


def _device_key(device: Any) -> int:
    return int(device.id)


def _from_numpy(array: Any, device: Any) -> Any:
    import cupy

    with cupy.cuda.Device(device):  # an index, a Device, or None for the current one
        return cupy.array(array)


def _to_numpy(array: Any) -> Any:
    import cupy

    with array.device:  # each device has its own current stream, and the copy waits for what that stream computes
        return cupy.asnumpy(array)


def _synchronize() -> None:
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def _versions() -> dict[str, str]:
    import array_api_compat
    import cupy
    import ml_dtypes

    libraries = {"cupy": cupy, "ml_dtypes": ml_dtypes, "array-api-compat": array_api_compat}
    return {name: library.__version__ for name, library in libraries.items()}


@hookimpl
def mha_backends() -> Iterable[Backend]:
    yield Backend(
        name="cupy",
        api=1,
        types=("cupy:ndarray",),
        namespace=_namespace,
        devices=_devices,
        current_device=_current_device,
        device_key=_device_key,
        from_numpy=_from_numpy,
        to_numpy=_to_numpy,
        synchronize=_synchronize,
        versions=_versions,
        install="pip install 'mha-core[cupy]'",
    )


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for op, name, module, limits, sources, handles, priority in (
        (
            "attention",
            "flash",
            "attention.flash",
            "attention.flash",
            ("flash.cu",),
            ATTENTION_FEATURES - {"mask", "relative_bias", "bias_term"},
            1,
        ),
        ("attention", "blocks", "attention.blocks", "attention.blocks", ("softmax.cu",), ATTENTION_FEATURES, 0),
        (
            "attention_vjp",
            "flash",
            "attention.flash_vjp",
            "attention.flash_vjp",
            ("rows.cu", "flash_vjp.cu"),
            ATTENTION_FEATURES - {"lse", "mask", "relative_bias", "bias_term"} | {"d_lse", "d_sink"},
            1,
        ),
        (
            "attention_vjp",
            "blocks",
            "attention.blocks_vjp",
            "attention.blocks_vjp",
            ("rows.cu", "softmax.cu"),
            ATTENTION_FEATURES - {"lse"} | {"d_lse", "d_bias", "d_sink"},
            0,
        ),
        ("layer_norm", "fused", "norms", "rowwise", ("norms.cu",), (), 0),
        ("rms_norm", "fused", "norms", "rowwise", ("norms.cu",), (), 0),
        ("gelu", "fused", "activations", "rowwise", ("activations.cu",), (), 0),
        ("relu", "fused", "activations", "rowwise", ("activations.cu",), (), 0),
        ("silu", "fused", "activations", "rowwise", ("activations.cu",), (), 0),
        ("rotary", "fused", "rotary", "rowwise", ("rotary.cu",), (), 0),
        ("linear", "fused", "layers", "rowwise", ("activations.cu",), (), 0),
        ("feed_forward", "fused", "layers", "rowwise", ("activations.cu",), ("gate",), 0),
        ("encoder_layer", "fused", "layers", "rowwise", ("norms.cu", "activations.cu"), STANDARD_LAYER_FEATURES, 0),
        ("layer_norm_vjp", "fused", "norms_vjp", "rowwise", ("norms_vjp.cu", "columns.cu"), (), 0),
        ("rms_norm_vjp", "fused", "norms_vjp", "rowwise", ("norms_vjp.cu", "columns.cu"), (), 0),
        ("gelu_vjp", "fused", "activations", "rowwise", ("activations_vjp.cu",), (), 0),
        ("relu_vjp", "fused", "activations", "rowwise", ("activations_vjp.cu",), (), 0),
        ("silu_vjp", "fused", "activations", "rowwise", ("activations_vjp.cu",), (), 0),
        ("rotary_vjp", "fused", "rotary", "rotary:supports_vjp", ("rotary.cu",), (), 0),
        ("linear_vjp", "fused", "linear_vjp", "linear_vjp", ("columns.cu",), (), 0),
        ("embedding_vjp", "fused", "linear_vjp", "linear_vjp:supports_embedding", ("columns.cu",), (), 0),
        ("adamw", "fused", "updates", "updates", ("adamw.cu",), (), 0),
    ):
        yield Kernel(
            backend="cupy",
            op=op,
            name=name,
            api=1,
            load=f"mha_cupy.{module}:{op}",
            priority=priority,
            handles=frozenset(handles),
            supports=f"mha_cupy.{limits}" if ":" in limits else f"mha_cupy.{limits}:supports",
            **record(op, name, sources),
        )
