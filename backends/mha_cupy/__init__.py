"""The CuPy plugin, for CUDA GPUs. Everything runs on CuPy's current device and stream."""

from collections.abc import Iterable, Set
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Kernel, NoDevice, hookimpl, write_rows

from .certificate import record


def _namespace() -> Any:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        runtime.getDeviceCount()  # raises if there is no device
    except runtime.CUDARuntimeError as error:
        reason = f"no CUDA device is available: {error}"
        raise NoDevice(f"{reason}; cupy {cupy.__version__} is installed, but needs a CUDA GPU and its driver") from error
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
        device_key=lambda device: int(device.id),
        from_numpy=_from_numpy,
        to_numpy=_to_numpy,
        synchronize=_synchronize,
        versions=_versions,
        install="pip install 'mha-core[cupy]'",
        write=write_rows,
    )


_FLASH = ATTENTION_FEATURES - {"mask", "relative_bias", "bias_term"}
_D_BLOCKS = ATTENTION_FEATURES - {"lse"} | {"d_lse", "d_bias", "d_sink"}
_D_FLASH = _FLASH - {"lse"} | {"d_lse", "d_sink"}

_KERNELS: tuple[tuple[str, str, int, str, str, tuple[str, ...], Set[str]], ...] = (
    # op, name, priority, module, what tells the limits, files of the folder cuda, features
    ("attention", "flash", 1, "attention.flash", "attention.flash", ("flash.cu",), _FLASH),
    ("attention", "blocks", 0, "attention.blocks", "attention.blocks", ("softmax.cu",), ATTENTION_FEATURES),
    ("attention_vjp", "flash", 1, "attention.flash_vjp", "attention.flash_vjp", ("rows.cu", "flash_vjp.cu"), _D_FLASH),
    ("attention_vjp", "blocks", 0, "attention.blocks_vjp", "attention.blocks_vjp", ("rows.cu", "softmax.cu"), _D_BLOCKS),
    ("layer_norm", "fused", 0, "norms", "rowwise", ("norms.cu",), set()),
    ("rms_norm", "fused", 0, "norms", "rowwise", ("norms.cu",), set()),
    ("gelu", "fused", 0, "activations", "rowwise", ("activations.cu",), set()),
    ("relu", "fused", 0, "activations", "rowwise", ("activations.cu",), set()),
    ("silu", "fused", 0, "activations", "rowwise", ("activations.cu",), set()),
    ("rotary", "fused", 0, "rotary", "rowwise", ("rotary.cu",), set()),
    ("linear", "fused", 0, "layers", "rowwise", ("activations.cu",), set()),
    ("feed_forward", "fused", 0, "layers", "rowwise", ("activations.cu",), {"gate"}),
    ("encoder_layer", "fused", 0, "layers", "rowwise", ("norms.cu", "activations.cu"), STANDARD_LAYER_FEATURES),
    ("layer_norm_vjp", "fused", 0, "norms_vjp", "rowwise", ("norms_vjp.cu", "columns.cu"), set()),
    ("rms_norm_vjp", "fused", 0, "norms_vjp", "rowwise", ("norms_vjp.cu", "columns.cu"), set()),
    ("gelu_vjp", "fused", 0, "activations", "rowwise", ("activations_vjp.cu",), set()),
    ("relu_vjp", "fused", 0, "activations", "rowwise", ("activations_vjp.cu",), set()),
    ("silu_vjp", "fused", 0, "activations", "rowwise", ("activations_vjp.cu",), set()),
    ("rotary_vjp", "fused", 0, "rotary", "rotary:supports_vjp", ("rotary.cu",), set()),
    ("linear_vjp", "fused", 0, "linear_vjp", "linear_vjp", ("columns.cu",), set()),
    ("embedding_vjp", "fused", 0, "linear_vjp", "linear_vjp:supports_embedding", ("columns.cu",), set()),
    ("adamw", "fused", 0, "updates", "updates", ("adamw.cu",), set()),
)


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for op, name, priority, module, limits, sources, handles in _KERNELS:
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
