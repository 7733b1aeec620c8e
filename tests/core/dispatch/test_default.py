"""The backend of calls without arrays: MHA_BACKEND, set_default_backend, and what default_backend says of them."""

from concurrent.futures import ThreadPoolExecutor

import array_api_strict as strict
import numpy as np
import pytest
from sample_kernels import a_backend

import mha_core as mha

X = np.asarray([[1.0, -2.0], [0.5, 3.0]])


def library():
    """Return the library that a call without arrays runs on; ``default_backend`` must name the same."""
    name = type(mha.sinusoidal_positions(2, 4)).__module__.partition(".")[0]
    assert mha.default_backend().name == name
    return name


def test_the_default_is_numpy_then_the_environment_then_the_set_one(monkeypatch):
    assert library() == "numpy"
    monkeypatch.setenv("MHA_BACKEND", "array_api_strict")
    assert library() == "array_api_strict"
    mha.set_default_backend("numpy")
    assert library() == "numpy"
    mha.set_default_backend(None)
    assert library() == "array_api_strict"
    monkeypatch.setenv("MHA_BACKEND", "")
    assert library() == "numpy"


@pytest.mark.parametrize("by", ["set_default_backend", "MHA_BACKEND"])
def test_the_default_does_not_apply_to_calls_with_arrays(monkeypatch, by):
    if by == "MHA_BACKEND":
        monkeypatch.setenv(by, "array_api_strict")
    else:
        mha.set_default_backend("array_api_strict")
    assert isinstance(mha.relu(X), np.ndarray)
    assert not isinstance(mha.LayerNorm.init(d_model=4).weight, np.ndarray)


def test_the_default_applies_to_every_thread_and_use_backend_wins_over_it():
    mha.set_default_backend("array_api_strict")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(library).result() == "array_api_strict"
    with mha.use_backend("numpy"):
        assert library() == "numpy"


def test_an_unknown_name_in_the_environment_never_falls_back(monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", "nunpy")
    for ask in (lambda: mha.sinusoidal_positions(2, 4), mha.default_backend):
        with pytest.raises(mha.UnknownBackend, match=r"^MHA_BACKEND is 'nunpy': no backend is named 'nunpy'; did you mean"):
            ask()


# what default_backend says


def test_default_backend_gives_the_reason(monkeypatch):
    assert str(mha.default_backend()) == "numpy: the default, since nothing else is set"
    monkeypatch.setenv("MHA_BACKEND", "array_api_strict")
    assert str(mha.default_backend()) == "array_api_strict: MHA_BACKEND is 'array_api_strict'"
    mha.set_default_backend("numpy")
    assert str(mha.default_backend()) == "numpy: set_default_backend('numpy') was called"
    with mha.use_backend("array_api_strict"):
        assert str(mha.default_backend()) == "array_api_strict: use_backend('array_api_strict') is in force"
    chosen = mha.default_backend()
    assert repr(chosen) == """BackendChoice(name='numpy', reason="set_default_backend('numpy') was called")"""
    with pytest.raises(AttributeError):
        chosen.name = "torch"


def test_default_backend_says_that_arrays_decide(backend):
    x = backend.from_numpy(X)
    choice = mha.default_backend(x, x)
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    assert (choice.name, choice.reason) == (backend.name, f"the arrays decide ({kind})")


def test_default_backend_refuses_what_a_call_would_refuse():
    with pytest.raises(TypeError, match=r"^arrays\[1\] is list; expected an array"):
        mha.default_backend(X, [1.0])
    for arrays in ((X, strict.ones(2)), (X,)):
        with mha.use_backend("array_api_strict"), pytest.raises(mha.BackendMismatch):
            mha.default_backend(*arrays)


def test_default_backend_imports_no_library(monkeypatch, installed):
    def fails():
        raise AssertionError("the library was loaded")

    installed(backends=[a_backend(namespace=fails)])
    monkeypatch.setenv("MHA_BACKEND", "sample")
    assert mha.default_backend().name == "sample"
    with pytest.raises(mha.BackendUnavailable, match=r"^MHA_BACKEND is 'sample': backend 'sample' cannot be used: "):
        mha.sinusoidal_positions(2, 4)
