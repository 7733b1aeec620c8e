"""torch, as a plugin: CPU, CUDA and whatever other devices it finds. Autograd passes through the whole algebra."""

from collections.abc import Iterable
from typing import Any

from mha_core.plugin import Backend, hookimpl


def _namespace() -> Any:
    import array_api_compat.torch

    return array_api_compat.torch


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
        array = array.copy()  # torch has neither read-only tensors nor negative strides
    return torch.asarray(array, device=device)


def _to_numpy(array: Any) -> Any:
    return array.detach().cpu().numpy()


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
        versions=_versions,
        install="pip install 'mha-core[torch]'",
    )
