"""For ``mha conform numpy --plugin cuda_on_host.installed``: the host stands in as soon as this is imported."""

from cuda_on_host.plugin import mha_kernels, stand_in

stand_in(setattr)

__all__ = ["mha_kernels"]
