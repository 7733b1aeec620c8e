"""Choice of the backend: by the arrays, by use_backend, by the default; errors for unknown and unavailable names."""

from concurrent.futures import ThreadPoolExecutor

import array_api_strict as strict
import numpy as np
import pytest
from sample_kernels import Plugin, a_backend, registered

import mha_core as mha
from mha_core.ops.operation import Operation
from mha_core.plugin import Kernel, NoDevice, Step

X = np.asarray([[1.0, -2.0], [0.5, 3.0]])


def library():
    """Return the library that a call without arrays runs on."""
    return type(mha.sinusoidal_positions(2, 4)).__module__.partition(".")[0]


# the arrays decide


def test_the_type_of_the_arrays_decides(backend):
    x = backend.from_numpy(X)
    assert type(mha.relu(x)) is type(x)
    np.testing.assert_array_equal(backend.to_numpy(mha.relu(x)), np.maximum(X, 0))


def test_a_subclass_of_an_array_type_belongs_to_its_backend():
    class Named(np.ndarray):
        pass

    assert isinstance(mha.relu(X.view(Named)), np.ndarray)
    np.testing.assert_array_equal(mha.linear(X, X.view(Named)), X @ X)


def test_a_type_belongs_to_a_backend_only_while_its_plugin_is_registered():
    class Foreign:
        dtype = np.dtype("int64")

    plugin = Plugin(backends=[a_backend(types=(f"{Foreign.__module__}:{Foreign.__qualname__}",))])
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^x is .*Foreign; expected an array of an installed backend \(.*numpy.*\)"):
            mha.relu(Foreign())
        with registered(plugin), pytest.raises(TypeError, match=r"^x has dtype int64"):
            mha.relu(Foreign())


CALLS = {
    mha.relu: ["x"],
    mha.linear: ["x", "w"],
    mha.scaled_dot_product_attention: ["query", "key", "value"],
    mha.embedding: ["ids", "table"],
}


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("x", [None, [1.0], "abc", 1.0, np.float64(1.0)], ids=repr)
def test_a_value_that_is_not_an_array_is_a_type_error_that_names_the_argument(operation, x):
    for name in CALLS[operation]:
        with pytest.raises(TypeError, match=rf"^{name} is .*{type(x).__name__}"):
            operation(**dict.fromkeys(CALLS[operation], X) | {name: x})


# use_backend


def test_the_innermost_use_backend_chooses_for_calls_without_arrays():
    assert library() == "numpy"
    with mha.use_backend("array_api_strict"):
        with mha.use_backend("numpy"):
            assert library() == "numpy"
        with pytest.raises(ZeroDivisionError), mha.use_backend("numpy"):
            raise ZeroDivisionError
        assert library() == "array_api_strict"
        weights = mha.Encoder.init(d_model=4, num_heads=2, d_ff=8, num_layers=1, seed=0).arrays().values()
        assert {type(w) for w in weights} == {type(strict.asarray(0))}
    assert library() == "numpy"


def test_an_argument_wins_over_use_backend():
    with mha.use_backend("array_api_strict"):
        assert isinstance(mha.sinusoidal_positions(2, 4, backend="numpy"), np.ndarray)


def test_use_backend_does_not_reach_new_threads():
    with mha.use_backend("array_api_strict"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(library).result() == "numpy"
        assert library() == "array_api_strict"


# unknown and unavailable names


ASKING = {
    "argument": lambda name: mha.sinusoidal_positions(2, 4, backend=name),
    "use_backend": lambda name: mha.use_backend(name).__enter__(),
    "set_default_backend": mha.set_default_backend,
    "layer": lambda name: mha.LayerNorm.init(d_model=4).to(name),
}
each_way_to_ask = pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)


@each_way_to_ask
def test_an_unknown_name_lists_installed_backends_and_suggests_one(ask):
    with pytest.raises(
        mha.UnknownBackend,
        match=r"'nunpy'; did you mean 'numpy'\? installed: array_api_strict, .*numpy",
    ) as error:
        ask("nunpy")
    assert isinstance(error.value, LookupError)
    with pytest.raises(mha.UnknownBackend, match="'qqq'") as error:
        ask("qqq")
    assert "mean" not in str(error.value)
    assert library() == "numpy"


@each_way_to_ask
@pytest.mark.parametrize(
    ("cause", "message", "install"),
    [
        (OSError("libsample.so is not there"), r"libsample\.so is not there.*pip install sample", "pip install sample"),
        (NoDevice("no sample device was found; a sample device is needed"), "a sample device is needed$", ""),
    ],
    ids=["no library", "no device"],
)
def test_a_library_that_fails_to_load_is_unavailable_with_cause_and_install_line(installed, ask, cause, message, install):
    """Where a device is missing, no command installs it."""

    def fails():
        raise cause

    installed(backends=[a_backend(namespace=fails, install="pip install sample")])
    assert "sample" in {backend.name for backend in mha.backends()}
    with pytest.raises(mha.BackendUnavailable, match=rf"'sample'.*{message}") as error:
        ask("sample")
    assert isinstance(error.value, ImportError) and error.value.__cause__ is cause and error.value.install == install
    assert library() == "numpy"


def test_a_library_is_loaded_once_and_again_only_after_a_failure(installed):
    asked = []

    def namespace():
        asked.append(1)
        if len(asked) == 1:
            raise ImportError
        return np

    installed(backends=[a_backend(namespace=namespace)])
    assert not asked
    with pytest.raises(mha.BackendUnavailable):
        mha.sinusoidal_positions(2, 4, backend="sample")
    for _ in range(2):
        assert mha.sinusoidal_positions(2, 4, backend="sample").shape == (2, 4)
    assert len(asked) == 2


def test_a_compiler_may_record_public_calls_once_the_library_is_loaded(installed):
    events = []

    def namespace():
        events.append("loaded")
        return np

    installed(backends=[a_backend(namespace=namespace, record_calls=events.append)])
    for _ in range(2):
        mha.sinusoidal_positions(2, 4, backend="sample")
    assert events == ["loaded", [Step.__call__, Operation.__call__]]


# devices


class Place(str):
    """A device with equality but no hash, like CuPy's; NumPy accepts the one named cpu."""

    __hash__ = None


class Placed(np.ndarray):
    device = Place("cpu")


PLACED = f"{Placed.__module__}:{Placed.__qualname__}"


def placed(current_device):
    """A backend of ``Placed`` arrays, with a ``device_key`` for devices that have no hash."""
    return a_backend(types=(PLACED,), current_device=current_device, device_key=str)


class WithHash(np.ndarray):
    """An array whose device is a string."""


@pytest.mark.parametrize("cls", [Placed, WithHash])
def test_arrays_on_another_device_than_the_current_one_are_refused(installed, cls):
    """Whatever was planned while that device was the current one."""
    types = (f"{cls.__module__}:{cls.__qualname__}",)
    installed(backends=[a_backend(types=types, current_device=lambda: current, device_key=str)])
    x, current = X.view(cls), Place("cpu") if cls is Placed else "cpu"
    for _ in range(2):
        np.testing.assert_array_equal(mha.relu(x), np.maximum(X, 0))
    current = type(current)("elsewhere")
    with pytest.raises(mha.BackendMismatch, match=r"^x is on device cpu, but sample computes on .* current device, elsewhere"):
        mha.relu(x)


@pytest.mark.parametrize("sink", [None, np.zeros(1).view(Placed)])
def test_kernels_are_chosen_for_devices_without_a_hash(installed, sink):
    asked = []

    def supports(call):
        asked.append((call.op, call.device))
        return "not today"

    kernels = [
        Kernel("sample", op, "never", 1, "nowhere:f", supports=supports, handles=frozenset({"lse", "sink"}))
        for op in ("relu", "attention")
    ]
    installed(*kernels, backends=[placed(lambda: current)])
    x, current = X.view(Placed), Place("cpu")
    mha.gelu(x)  # from now on its type is known
    for _ in range(2):  # the second time with the kept plan
        np.testing.assert_array_equal(mha.relu(x), np.maximum(X, 0))
        mha.attention_state(x, x, x, sink=sink)
    assert asked == [("relu", "cpu"), ("attention", "cpu")]
    current = Place("elsewhere")  # a plan for one device does not serve another
    for compute in (lambda: mha.relu(x), lambda: mha.attention_state(x, x, x, sink=sink)):
        with pytest.raises(mha.BackendMismatch, match="current device, elsewhere"):
            compute()


def test_arrays_in_options_are_read_in_each_call_if_devices_have_no_hash(installed):
    installed(backends=[placed(lambda: Place("cpu"))])
    x, mask = X.view(Placed), np.zeros((len(X), len(X)), dtype=bool).view(Placed)
    assert not mha.attention_state(x, x, x, mask=mask).out.any()
    mask[...] = True
    assert mha.attention_state(x, x, x, mask=mask).out.all()


def test_a_value_that_is_not_an_array_is_refused_by_type_if_devices_have_no_hash(installed):
    installed(backends=[placed(lambda: Place("cpu"))])
    x = X.view(Placed)
    mha.gelu(x)  # from now on its type is known
    for compute in (lambda: mha.layer_norm(x, [1.0] * 3), lambda: mha.scaled_dot_product_attention(x, [1.0], x)):
        with pytest.raises(TypeError, match="list"):
            compute()


def test_without_a_device_key_every_call_on_a_device_without_a_hash_is_planned(installed):
    asked = []
    kernel = Kernel("sample", "relu", "never", 1, "nowhere:f", supports=lambda call: asked.append(call.device) or "not today")
    installed(kernel, backends=[a_backend(types=(PLACED,))])
    for _ in range(3):
        np.testing.assert_array_equal(mha.relu(X.view(Placed)), np.maximum(X, 0))
    assert asked == ["cpu"] * 3


def test_every_array_of_a_mask_is_checked_also_two_of_one_kind():
    mask = mha.array_mask(strict.ones((2, 2), dtype=strict.bool)) & mha.array_mask(np.ones((2, 2), dtype=bool))
    with pytest.raises(mha.BackendMismatch, match=r"^mask is a array_api_strict.*query is a numpy"):
        mha.scaled_dot_product_attention(X, X, X, mask=mask)


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (0, ValueError, "n is 0; expected at least 1 thread, or None"),
        (2**70, ValueError, f"n is {2**70}; expected at most 4096 threads"),
        (True, TypeError, "n is bool; expected an int, the number of threads, or None"),
        (1.5, TypeError, "n is float; expected an int, the number of threads, or None"),
    ],
)
def test_a_number_of_threads_that_cannot_be_is_refused(n, error, message):
    with pytest.raises(error, match=message):
        mha.set_num_threads(n)
