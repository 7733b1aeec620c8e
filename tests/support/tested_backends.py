"""The backends that tests of the algebra run on."""

import needs
import pytest
import strict_plugin

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_core.plugin import NoDevice, register

BACKENDS = {"numpy": "numpy", "torch": "torch", "array_api_strict": "array_api_strict", "frozen_v1": "mha_frozen_v1"}
"""Backends that the algebra is tested on, and the library that each one needs."""

register(strict_plugin)
WITHOUT_CUPY = needs.without("cupy")
if not WITHOUT_CUPY:
    try:
        load("cupy")
        BACKENDS["cupy"] = "cupy"
    except mha.BackendUnavailable as error:
        if not isinstance(error.__cause__, NoDevice):  # CuPy is installed, but broken
            raise
        WITHOUT_CUPY = str(error.__cause__)
EACH_BACKEND = [pytest.param(name, marks=needs.installed(library)) for name, library in BACKENDS.items()]
