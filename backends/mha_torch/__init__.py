"""The torch plugin, for the CPU, CUDA and torch's other devices.

Autograd works through the algebra and through the kernels that declare gradients.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import ExitStack
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Collectives, Kernel, hookimpl, write_rows

_default_threads: int | None = None  # torch's number of threads before the user set another
_torch: Any = None  # set when the namespace is loaded, like the three below; _features reads them in every call
_level: Any = None
_transform: Any = None
_is_autocast: Any = None
_modes: Any = None
_tracing: Any = None
_own_types: frozenset[type] = frozenset({type(None)})


def _namespace() -> Any:
    global _torch, _level, _transform, _is_autocast, _modes, _tracing, _own_types
    import torch

    from . import namespace

    _torch, _level, _transform = torch, torch.autograd.forward_ad, torch._C._functorch.peek_interpreter_stack
    _is_autocast = torch._C._is_any_autocast_enabled
    _modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
    _own_types = frozenset({type(None), torch.Tensor, torch.nn.Parameter})
    return namespace


def _record_calls(calls: Sequence[Any]) -> None:
    """Make torch.compile record each call of ours; older versions of torch leave their graph instead."""
    frames = _torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for call in calls:
            call._torchdynamo_inline = _compiled  # torch follows this function instead
            # if it gave up on the caller and meets the call alone, it compiles neither the call nor what it calls
            frames.set_code_exec_strategy(call.__code__, skip)


def _compiled(step: Any, /, *arguments: Any, **options: Any) -> Any:
    from . import compiled  # only torch.compile gets here; without it, nothing of it is imported

    return compiled.call(step, *arguments, **options)


def _devices() -> list[str]:
    import torch

    names = ["cpu"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        names += [f"{accelerator.type}:{at}" for at in range(torch.accelerator.device_count())]
    return names


def _from_numpy(array: Any, device: Any) -> Any:
    import torch

    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch supports neither read-only memory nor negative strides
    return torch.asarray(array, device=device)


def _write(x: Any, start: int, rows: Any) -> Any:
    if x.is_inference() and not _torch.is_inference_mode_enabled():
        x = x.clone()  # torch refuses to write into an array of its inference mode elsewhere
    return write_rows(x, start, rows)


_PLAIN: frozenset[str] = frozenset()
_GRADIENT = frozenset({"gradient"})
_TANGENT = frozenset({"gradient", "forward_gradient"})
_VMAP = frozenset({"gradient", "vmap"})
_AUTOCAST = frozenset({"autocast"})
_TRACED = frozenset({"traced"})


def _features(arrays: Sequence[Any]) -> frozenset[str]:
    """Return the features of a call that records gradients, is traced, or runs under vmap or autocast; none for any other call.

    Forward mode (torch.func.jvp) is a separate feature, because few fused kernels support it; under vmap, few of them have a
    batching rule. Inside a torch.func transform, arrays do not show whether gradients are recorded, so they are assumed to be.
    """
    if _level._current_level >= 0:
        features = _TANGENT
    elif _transform() is not None:
        kinds, functorch = _torch._C._functorch.TransformType, _torch._C._functorch
        levels = [level.key() for level in functorch.get_interpreter_stack()]
        features = _TANGENT if kinds.Jvp in levels else _VMAP if kinds.Vmap in levels else _GRADIENT
    else:
        features = _PLAIN
        for x in arrays:
            if x is not None and x.requires_grad:
                features = _GRADIENT if _torch.is_grad_enabled() else _PLAIN
                break
    if _modes() or _tracing() is not None or not (_own_types.issuperset(map(type, arrays)) or all(map(_has_memory, arrays))):
        features |= _TRACED
    return features | _AUTOCAST if _is_autocast() else features


def _has_memory(x: Any) -> bool:
    """Return whether an array is a plain tensor, not one of a class that gives torch's operations another meaning."""
    return type(x) in _own_types or type(x).__torch_dispatch__ is _torch._C._disabled_torch_dispatch_impl


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in the dtype of its arguments: torch.autocast has no effect inside."""
    available = _torch.accelerator.is_available()
    devices = {"cpu", *([_torch.accelerator.current_accelerator().type] if available else [])}

    def shielded(*arguments: Any, **options: Any) -> Any:
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(_torch.autocast(device, enabled=False))
            return function(*arguments, **options)

    return shielded


def _transform_named(name: str) -> Callable[..., Any]:
    def transform(*arguments: Any) -> Any:
        from . import transforms

        return getattr(transforms, name)(*arguments)

    return transform


def _synchronize() -> None:
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
    from .threads import parallel

    return parallel(function, items)


def _set_num_threads(n: int | None) -> None:
    """Set torch's number of CPU threads. A thread that has already computed with torch keeps the number that it began with."""
    global _default_threads
    import torch

    if n is not None:
        _default_threads = torch.get_num_threads() if _default_threads is None else _default_threads
        torch.set_num_threads(n)
    elif _default_threads is not None:
        torch.set_num_threads(_default_threads)
        _default_threads = None


def _versions() -> dict[str, str]:
    import array_api_compat
    import torch

    return {"torch": torch.__version__, "array-api-compat": array_api_compat.__version__}


@hookimpl
def mha_backends() -> Iterable[Backend]:
    yield Backend(
        name="torch",
        api=1,
        types=("torch:Tensor",),
        namespace=_namespace,
        from_numpy=_from_numpy,
        to_numpy=lambda array: array.detach().cpu().numpy(),
        devices=_devices,
        parallel=_parallel,
        synchronize=_synchronize,
        features=_features,
        shields={"autocast": _without_autocast},
        version=lambda x: 0 if x.is_inference() else x._version,  # torch counts no writes into arrays of its inference mode
        value_and_grad=_transform_named("value_and_grad"),
        custom_vjp=_transform_named("custom_vjp"),
        transforms={name: _transform_named(name) for name in ("gradient", "forward_gradient", "vmap")},
        record_calls=_record_calls,
        set_num_threads=_set_num_threads,
        versions=_versions,
        install="pip install 'mha-core[torch]'",
        write=_write,
    )


@hookimpl
def mha_collectives() -> Iterable[Collectives]:
    groups = ("torch.distributed.distributed_c10d:ProcessGroup", "torch.distributed.device_mesh:DeviceMesh")
    yield Collectives("torch.distributed", 1, groups, "mha_torch.ranks:Ranks", install="pip install 'mha-core[torch]'")


_MASKED = ATTENTION_FEATURES | {"mask_function"}
_VJP = _MASKED - {"lse"} | {"d_lse", "d_sink", "d_bias", "traced"}
_RECOMPUTED = _MASKED - {"bias_term"} | {"score_function"}
_VARLEN = {"gradient", "traced", "grouped_query", "packed", "key_lengths", "causal", "window"}

_KERNELS: tuple[tuple[str, str, int, str, str, Set[str]], ...] = (
    # op, name, priority, module, what tells the limits ("": nothing does), features
    ("attention", "recompute", 1, "recompute", "recompute:supports", _RECOMPUTED | _VMAP | _TRACED),
    ("attention", "tiles", 1, "tiles", "tiles:supports", _MASKED | {"score_function"}),
    ("attention", "sdpa", 0, "sdpa", "sdpa:supports", _MASKED - {"softcap"} | _GRADIENT | _TRACED),
    ("attention", "varlen", -1, "varlen", "varlen:supports", _VARLEN),
    ("attention_vjp", "onednn", 2, "blocks_vjp", "blocks_vjp:supports_onednn", _VJP | {"score_function"}),
    ("attention_vjp", "sdpa", 1, "sdpa_vjp", "sdpa_vjp:supports", _VJP - {"softcap", "d_bias"}),
    ("attention_vjp", "blocks", 0, "blocks_vjp", "blocks_vjp:supports", _VJP | {"score_function"}),
    ("encoder_layer", "functional", 0, "layers", "layers:supports", STANDARD_LAYER_FEATURES | _TRACED),
    ("feed_forward", "inplace", 0, "layers", "layers:supports", _TRACED | {"gate"}),
    ("linear", "onednn", 1, "onednn", "onednn:supports", _TRACED),
    ("linear", "functional", 0, "functional", "", _VMAP | _TRACED),
    ("linear_vjp", "onednn", 0, "onednn", "onednn:supports", _PLAIN),
    ("layer_norm", "functional", 0, "functional", "", _VMAP | _TRACED),
    ("layer_norm_vjp", "fused", 0, "gradients", "activations:supports", _PLAIN),
    ("rms_norm", "functional", 0, "functional", "", _VMAP | _TRACED),
    ("gelu", "chunks", 1, "activations", "activations:supports_gelu", _PLAIN),
    ("gelu", "functional", 0, "functional", "functional:supports", _VMAP | _TRACED),
    ("gelu_vjp", "fused", 0, "activations", "activations:supports", _PLAIN),
    ("silu", "functional", 0, "functional", "", _VMAP | _TRACED),
    ("silu_vjp", "fused", 0, "activations", "activations:supports", _PLAIN),
    ("relu", "functional", 0, "functional", "", _VMAP | _TRACED),
    ("relu_vjp", "fused", 0, "activations", "activations:supports", _PLAIN),
    ("rotary", "inplace", 0, "rotary", "activations:supports", _PLAIN),
    ("embedding_vjp", "fused", 0, "gradients", "", _PLAIN),
    ("adamw", "fused", 0, "updates", "updates:supports", _PLAIN),
)


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    for op, name, priority, module, supports, handles in _KERNELS:
        yield Kernel(
            backend="torch",
            op=op,
            name=name,
            api=1,
            load=f"mha_torch.{module}:{op}",
            priority=priority,
            handles=frozenset(handles),
            supports=f"mha_torch.{supports}" if supports else None,
            opt_in=name == "varlen",  # not yet run on a GPU
            prepare="mha_torch.sdpa:prepare" if (op, name) == ("attention", "sdpa") else None,
        )
