"""In this folder the host stands in for the device."""

import pytest
from cuda_on_host import plugin
from sample_kernels import registered


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """Register the kernels of mha_cupy for NumPy arrays, with names that end with ``_on_host``."""
    plugin.stand_in(monkeypatch.setattr)
    with registered(plugin):
        yield


@pytest.fixture
def normal(rng):
    """Return a function that draws an array of a shape and a dtype."""
    return lambda *shape, dtype="float32": rng.normal(size=shape).astype(dtype)
