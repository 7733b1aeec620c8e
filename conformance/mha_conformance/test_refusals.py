"""Bad input is refused with an error that names the argument (promises 5, 6, 10, 15), before any kernel is asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel

from .backend import BackendUnderTest
from .cases.bad_inputs import BAD_INPUTS, SHAPES, BadInput
from .cases.features import ALL_FEATURES
from .cases.masks import Make
from .judge.attention import state_of
from .judge.held import Judge
from .oracle import tolerance
from .probes.recorder import recorded

SECTION = "promises"
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def xyz(rng: np.random.Generator) -> Arrays:
    """query (2, 4, 5, 6), key and value (2, 2, 7, ...)."""
    query, key, value = (rng.normal(size=shape) for shape in SHAPES.values())
    return query, key, value


@pytest.fixture
def no_kernel_is_asked(backend: BackendUnderTest) -> Iterator[None]:
    """Assert that no work begins: a kernel that observes every attention call sees none."""
    with recorded(Kernel(backend.name, "attention", "observer", 1, f"{__name__}:never"), ALL_FEATURES) as recording:
        yield
    assert not recording.seen, "a kernel was asked before the arguments were checked"


TABLE = np.linspace(-1.0, 1.0, 32).reshape(8, 4)
# name: (argument, function that makes it): all masks and biases that depend on the position of the query
ALIGNED: dict[str, tuple[str, Callable[[Make], Any]]] = {
    "causal": ("mask", lambda make: mha.causal()),
    "window": ("mask", lambda make: mha.window(1, 1)),
    "window on one side": ("mask", lambda make: mha.window(None, 2)),
    "chunks": ("mask", lambda make: mha.chunks(2)),
    "not causal": ("mask", lambda make: ~mha.causal()),
    "causal inside an expression": ("mask", lambda make: mha.prefix(3) | (mha.causal() & mha.key_lengths(5))),
    "alibi": ("bias", lambda make: mha.alibi(4)),
    "relative bias": ("bias", lambda make: mha.relative_bias(make(TABLE), bidirectional=True, max_distance=5)),
}


@pytest.mark.promise(5)
@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.usefixtures("no_kernel_is_asked")
def test_5_without_an_offset_alignment_is_an_error(judge: Judge, xyz: Arrays, name: str) -> None:
    option, make = ALIGNED[name]
    given: dict[str, Any] = {option: make(lambda x: judge.array(x))}
    with pytest.raises(ValueError, match=r"5 queries and 7 keys.*query_offset=0 .*query_offset=2 ") as raised:
        state_of(judge, *xyz, **given)
    assert str(raised.value).startswith(option)


@pytest.mark.promise(5)
@pytest.mark.parametrize("name", ["prefix", "key_lengths", "array_mask"])
def test_5_masks_by_key_index_need_no_offset(judge: Judge, xyz: Arrays, name: str) -> None:
    masks = {"prefix": mha.prefix(4), "key_lengths": mha.key_lengths(4), "array_mask": judge.array(np.arange(7) < 4)}
    without, _ = state_of(judge, *xyz, mask=masks[name])
    for offset in (0, 2, -3):
        with_offset, _ = state_of(judge, *xyz, mask=masks[name], query_offset=offset)
        assert with_offset.tobytes() == without.tobytes()


@pytest.mark.promise(5)
def test_5_each_batch_element_may_have_its_own_offset(judge: Judge, xyz: Arrays) -> None:
    """Offsets may be negative: the first queries then see no key."""
    query, key, value = (judge.rounded(x) for x in xyz)
    offsets = np.asarray([2, -2])
    position = offsets[:, None, None, None] + np.arange(5)[:, None]
    exact = judge.exact_attention(query, key, value, allowed=np.arange(7) <= position)
    out, lse = state_of(judge, query, key, value, mask=mha.causal(), query_offset=judge.array(offsets))
    exact.assert_near(out, lse)
    assert (lse[1, :, :2] == -np.inf).all() and (out[1, :, :2] == 0).all()


@pytest.mark.promise(6)
def test_6_options_reach_attention_inside_multi_head_attention(judge: Judge) -> None:
    """With identity matrices as weights, multi-head attention is attention, with all options and with each one left out."""
    x, one = judge.array(judge.rng.normal(size=(2, 6, 8))), judge.array(np.eye(8))
    bias, sink = judge.array(judge.rng.normal(size=(2, 6, 6))), judge.array(judge.rng.normal(size=2))
    options: dict[str, Any] = {"mask": mha.causal() & ~mha.prefix(1), "bias": bias, "scale": 0.7, "softcap": 1.5, "sink": sink}
    heads = judge.xp.moveaxis(judge.xp.reshape(x, (2, 6, 2, 4)), -2, -3)

    def joined(out: Any) -> np.ndarray:
        return np.moveaxis(judge.numpy(out), -3, -2).reshape(2, 6, 8)

    plain = joined(mha.scaled_dot_product_attention(heads, heads, heads))
    for left_out in [None] if judge.quick else [None, *options]:
        some: Any = {name: x for name, x in options.items() if name != left_out}
        got = judge.numpy(mha.multi_head_attention(x, one, one, one, one, 2, **some, query_offset=1))
        expected = joined(mha.scaled_dot_product_attention(heads, heads, heads, **some, query_offset=1))
        slack = 16 * tolerance.UNIT_ROUNDOFF[judge.dtype] * np.abs(expected).max()  # a multi-head kernel may round differently
        np.testing.assert_allclose(got, expected, rtol=0, atol=slack)
        assert np.abs(got - plain).max() > 4 * slack, "the options changed nothing"


@pytest.mark.promise(6)
@pytest.mark.usefixtures("no_kernel_is_asked")
@pytest.mark.parametrize("name", ["is_causal", "dropout_p", "attn_mask"])
def test_6_an_unknown_option_is_an_error(judge: Judge, xyz: Arrays, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        state_of(judge, *xyz, **{name: 1})


def assert_refused(backend: BackendUnderTest, change: Callable[[np.ndarray], Any], text: str, error: type[Exception]) -> None:
    """Assert that calls in which one argument is changed raise this error, whose message begins with that argument's name."""
    x = np.ones((2, 5, 5))
    good = {name: backend.array(x) for name in ("query", "key", "value")}
    attention = {"key": x, "value": x, "mask": np.ones((5, 5), dtype=bool), "bias": x, "sink": np.ones(2)}
    calls: dict[str, Callable[[], Any]] = {
        name: partial(mha.attention_state, **{**good, name: change(option)}) for name, option in attention.items()
    }
    calls["w"] = lambda: mha.linear(good["query"], change(np.ones((5, 3))))
    calls["weight"] = lambda: mha.layer_norm(good["query"], change(np.ones(5)))
    for name, call in calls.items():
        with pytest.raises(error, match=rf"^{name}\b{text}"):
            call()


@pytest.mark.promise(10)
@pytest.mark.usefixtures("no_kernel_is_asked")
def test_10_another_library_is_a_type_error_wherever_it_stands(backend: BackendUnderTest) -> None:
    """Mix NumPy arrays with the backend's; for NumPy, arrays of an unknown library."""

    class Foreign:
        def __init__(self, x: np.ndarray) -> None:
            self.shape, self.ndim, self.dtype = x.shape, x.ndim, x.dtype

    foreign: Any = Foreign if backend.name == "numpy" else lambda x: x.astype("float32") if x.dtype.kind == "f" else x
    assert_refused(backend, foreign, "", TypeError)


@pytest.mark.promise(10)
@pytest.mark.usefixtures("no_kernel_is_asked")
def test_10_another_device_is_a_type_error_wherever_it_stands(backend: BackendUnderTest) -> None:
    """Use the first other device that accepts an array, among those that the namespace or the plugin lists."""
    there = _elsewhere(backend)
    if there is None:
        pytest.skip("the backend has only one device on this machine")
    assert_refused(backend, lambda x: _on(backend, x, there), ".* is on (device )?.*, but ", mha.BackendMismatch)


def _elsewhere(backend: BackendUnderTest) -> Any:
    here = str(getattr(backend.array(np.ones(1)), "device", None))
    info = getattr(backend.xp, "__array_namespace_info__", None)
    named = [*(info().devices() if info else ()), *(backend.loaded.record.devices() if backend.loaded.record.devices else ())]
    for device in named:
        try:
            x = _on(backend, np.ones(1), device)
            if str(x.device) not in (here, "None"):
                return device
        except Exception:  # a listed device may refuse an array with any error
            continue
    return None


def _on(backend: BackendUnderTest, x: np.ndarray, device: Any) -> Any:
    kind = backend.xp.bool if x.dtype.kind == "b" else getattr(backend.xp, backend.dtype)
    return backend.xp.ones(x.shape, dtype=kind, device=device)


@pytest.mark.promise(10)
@pytest.mark.usefixtures("no_kernel_is_asked")
def test_10_integers_are_type_errors_wherever_they_stand(backend: BackendUnderTest) -> None:
    assert_refused(backend, lambda x: backend.array(np.ones(x.shape, dtype=np.int32)), ".* has dtype .*int32", TypeError)


@pytest.mark.promise(10)
def test_10_the_conversion_to_write_works(backend: BackendUnderTest) -> None:
    """The line of the message is run as it stands, where the library is imported."""
    query = backend.array(np.ones((2, 5, 4)), backend.dtypes[0])
    key = backend.array(np.ones((2, 5, 4), dtype=np.int32))
    with pytest.raises(TypeError) as raised:
        mha.scaled_dot_product_attention(query, key, query)
    modules = [
        backend.xp.__name__,
        *(owner.partition(":")[0] for owner in backend.loaded.record.types if isinstance(owner, str)),
    ]
    roots = [module.partition(".")[0] for module in modules]
    scope: dict[str, Any] = {"key": key, **{root: importlib.import_module(root) for root in roots}}
    line = str(raised.value).partition("write ")[2]
    exec(line, scope)
    assert scope["key"].dtype == query.dtype, line


@pytest.mark.promise(15)
@pytest.mark.parametrize("bad", BAD_INPUTS, ids=[bad.message[:40] for bad in BAD_INPUTS])
@pytest.mark.usefixtures("no_kernel_is_asked")
def test_15_bad_input_names_the_argument_before_any_work(backend: BackendUnderTest, xyz: Arrays, bad: BadInput) -> None:
    arguments = {name: backend.array(x) for name, x in zip(SHAPES, xyz, strict=True)}
    with pytest.raises(bad.error) as raised:
        mha.attention_state(**(arguments | {name: make(backend.array) for name, make in bad.change.items()}))
    assert bad.message in str(raised.value)
