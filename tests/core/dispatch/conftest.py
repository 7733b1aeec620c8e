"""The default backend is as it was after each test of dispatch."""

import pytest

import mha_core as mha


@pytest.fixture(autouse=True)
def default_restored(monkeypatch):
    monkeypatch.delenv("MHA_BACKEND", raising=False)
    yield
    mha.set_default_backend(None)
