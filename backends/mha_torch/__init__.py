"""The torch plugin, for the CPU, CUDA and torch's other devices.

Autograd works through the algebra and through the kernels that declare gradients.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from mha_core.plugin import ATTENTION_FEATURES, STANDARD_LAYER_FEATURES, Backend, Collectives, Kernel, Step, hookimpl

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
    import array_api_compat.torch
    import torch

    _torch, _level, _transform = torch, torch.autograd.forward_ad, torch._C._functorch.peek_interpreter_stack
    _is_autocast = torch._C._is_any_autocast_enabled
    _modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
    _own_types = frozenset({type(None), torch.Tensor, torch.nn.Parameter})
    if hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):  # older versions of torch leave their graph instead
        for call in Step.calls():
            call._torchdynamo_inline = _compiled  # what torch.compile follows instead
    return array_api_compat.torch


def _compiled(step: Any, /, *arguments: Any, **options: Any) -> Any:
    from . import compiled  # only torch.compile gets here; without it, nothing of it is imported

    return compiled.call(step, *arguments, **options)


def _devices() -> list[str]:
    import torch

    found = ["cpu"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        found += [f"{accelerator.type}:{at}" for at in range(torch.accelerator.device_count())]
    return found


def _from_numpy(array: Any, device: Any) -> Any:
    import torch

    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch supports neither read-only memory nor negative strides
    return torch.asarray(array, device=device)


def _to_numpy(array: Any) -> Any:
    return array.detach().cpu().numpy()


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
        found = _TANGENT
    elif _transform() is not None:
        kinds, functorch = _torch._C._functorch.TransformType, _torch._C._functorch
        levels = [level.key() for level in functorch.get_interpreter_stack()]
        found = _TANGENT if kinds.Jvp in levels else _VMAP if kinds.Vmap in levels else _GRADIENT
    else:
        found = _PLAIN
        for x in arrays:
            if x is not None and x.requires_grad:
                found = _GRADIENT if _torch.is_grad_enabled() else _PLAIN
                break
    if _modes() or _tracing() is not None or not all(map(_has_memory, arrays)):
        found |= _TRACED
    return found | _AUTOCAST if _is_autocast() else found


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
        to_numpy=_to_numpy,
        devices=_devices,
        parallel=_parallel,
        synchronize=_synchronize,
        features=_features,
        shields={"autocast": _without_autocast},
        value_and_grad=_transform_named("value_and_grad"),
        custom_vjp=_transform_named("custom_vjp"),
        transforms={name: _transform_named(name) for name in ("gradient", "forward_gradient", "vmap")},
        set_num_threads=_set_num_threads,
        versions=_versions,
        install="pip install 'mha-core[torch]'",
        elsewhere={op: {"native": "pip install ./backends/mha_native"} for op in ("attention", "attention_vjp")},
    )


@hookimpl
def mha_collectives() -> Iterable[Collectives]:
    groups = ("torch.distributed.distributed_c10d:ProcessGroup", "torch.distributed.device_mesh:DeviceMesh")
    yield Collectives("torch.distributed", 1, groups, "mha_torch.ranks:Ranks", install="pip install 'mha-core[torch]'")


@hookimpl
def mha_kernels() -> Iterable[Kernel]:
    yield Kernel(
        backend="torch",
        op="attention",
        name="sdpa",
        api=1,
        load="mha_torch.sdpa:attention",
        handles=ATTENTION_FEATURES - {"softcap"} | {"gradient", "traced"},
        supports="mha_torch.sdpa:supports",
        prepare="mha_torch.sdpa:prepare",
    )
    yield Kernel(
        backend="torch",
        op="attention",
        name="recompute",
        api=1,
        load="mha_torch.recompute:attention",
        priority=1,
        handles=ATTENTION_FEATURES - {"bias_term"} | {"gradient", "vmap", "traced"},
        supports="mha_torch.recompute:supports",
    )
    yield Kernel(
        backend="torch",
        op="attention",
        name="varlen",
        api=1,
        load="mha_torch.varlen:attention",
        priority=-1,
        handles=frozenset({"gradient", "traced", "grouped_query", "packed", "key_lengths", "causal", "window"}),
        supports="mha_torch.varlen:supports",
        opt_in=True,  # not yet run on a GPU
    )
    yield Kernel(
        backend="torch",
        op="attention_vjp",
        name="sdpa",
        api=1,
        load="mha_torch.sdpa_vjp:attention_vjp",
        priority=1,
        handles=ATTENTION_FEATURES - {"lse", "softcap"} | {"d_lse", "d_sink", "traced"},
        supports="mha_torch.sdpa_vjp:supports",
    )
    for name, priority, supports in (("onednn", 2, "supports_onednn"), ("blocks", 0, "supports")):
        yield Kernel(
            backend="torch",
            op="attention_vjp",
            name=name,
            api=1,
            load="mha_torch.blocks_vjp:attention_vjp",
            priority=priority,
            handles=ATTENTION_FEATURES - {"lse"} | {"d_lse", "d_sink", "d_bias", "traced"},
            supports=f"mha_torch.blocks_vjp:{supports}",
        )
    yield Kernel(
        backend="torch",
        op="encoder_layer",
        name="functional",
        api=1,
        load="mha_torch.layers:encoder_layer",
        handles=STANDARD_LAYER_FEATURES | _TRACED,
        supports="mha_torch.layers:supports",
    )
    yield Kernel(
        backend="torch",
        op="feed_forward",
        name="inplace",
        api=1,
        load="mha_torch.layers:feed_forward",
        handles=_TRACED | {"gate"},
        supports="mha_torch.layers:supports",
    )
    yield Kernel(
        backend="torch",
        op="rotary",
        name="inplace",
        api=1,
        load="mha_torch.rotary:rotary",
        supports="mha_torch.activations:supports",
    )
    yield Kernel(
        backend="torch",
        op="linear",
        name="onednn",
        api=1,
        load="mha_torch.onednn:linear",
        priority=1,
        handles=_TRACED,
        supports="mha_torch.onednn:supports",
    )
    for op in ("linear", "layer_norm", "rms_norm", "gelu", "silu", "relu"):
        yield Kernel(
            backend="torch",
            op=op,
            name="functional",
            api=1,
            load=f"mha_torch.functional:{op}",
            handles=_VMAP | _TRACED,
            supports="mha_torch.functional:supports" if op == "gelu" else None,
        )
    yield Kernel(
        backend="torch",
        op="linear_vjp",
        name="onednn",
        api=1,
        load="mha_torch.onednn:linear_vjp",
        supports="mha_torch.onednn:supports",
    )
    yield Kernel(
        backend="torch",
        op="gelu",
        name="chunks",
        api=1,
        load="mha_torch.activations:gelu",
        priority=1,
        supports="mha_torch.activations:supports_gelu",
    )
    for op, module in (
        ("gelu_vjp", "activations"),
        ("silu_vjp", "activations"),
        ("relu_vjp", "activations"),
        ("layer_norm_vjp", "gradients"),
        ("adamw", "updates"),
    ):
        yield Kernel(
            backend="torch",
            op=op,
            name="fused",
            api=1,
            load=f"mha_torch.{module}:{op}",
            supports="mha_torch.activations:supports",
        )
    yield Kernel(backend="torch", op="embedding_vjp", name="fused", api=1, load="mha_torch.gradients:embedding_vjp")
