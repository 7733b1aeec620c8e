"""use_kernel, broken kernels, and the cache of decisions, which is keyed by the whole signature."""

import math
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sample_kernels import FEATURES, Plugin, a_call, a_kernel, received, registered

import mha_core as mha

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
W, B = np.full((4, 4), 0.3, dtype=np.float32), np.full(4, 0.2, dtype=np.float32)


def test_a_function_says_whether_a_kernel_is_chosen_and_is_asked_when_one_is(installed):
    asked = []

    def reason():
        asked.append(1)
        return "not certified"

    def broken():
        raise OSError("no file")

    installed(
        a_kernel("relu", name="yes", opt_in=lambda: False),
        a_kernel("relu", name="broken", priority=101, opt_in=broken),
        a_kernel("relu", name="no", priority=102, opt_in=reason),
    )
    assert not asked
    with pytest.warns(mha.KernelWarning, match=r"broken.* cannot say whether it may be chosen: OSError: no file"):
        explanation = mha.explain("relu", X)
    assert asked == [1] and explanation.kernel == "yes"
    assert ("no", "is chosen only by use_kernel('relu', 'no'): not certified") in explanation.rejected
    for name in ("no", "broken"):
        with mha.use_kernel("relu", name):
            assert mha.explain("relu", X).kernel == name


def test_a_kernel_is_demanded_by_name(installed):
    installed(a_kernel("relu", name="first", priority=2), a_kernel("relu", name="second", priority=1, opt_in=True))
    y = -np.ones(3)
    assert mha.explain("relu", y).kernel == "first"
    with mha.use_kernel("relu", "second"):
        assert mha.explain("relu", y).kernel == "second"
        assert ("first", "use_kernel asks for 'second'") in mha.explain("relu", y).rejected
        assert mha.relu(y) is y
        with mha.use_kernel("relu", "algebra"):
            np.testing.assert_array_equal(mha.relu(y), 0)
        assert mha.relu(y) is y
    assert mha.explain("relu", y).kernel == "first"


def test_a_demanded_kernel_that_cannot_do_the_call_raises_with_the_reason(installed):
    installed(a_kernel(name="plain", handles=frozenset()))
    with mha.use_kernel("attention", "plain"):
        mha.scaled_dot_product_attention(X, X, X)
        with pytest.raises(
            mha.KernelUnsupported,
            match=r"asks for 'plain' for attention on numpy, which cannot compute this call: it does not handle causal; "
            r"leave use_kernel out, or write use_kernel\('attention', 'algebra'\)",
        ):
            mha.scaled_dot_product_attention(X, X, X, mask=mha.causal())
        mha.scaled_dot_product_attention(X, X, X)


def test_a_kernel_of_another_backend_is_refused():
    with (
        mha.use_kernel("attention", "sdpa"),
        pytest.raises(mha.KernelUnsupported, match="a kernel of torch, but the arrays"),
    ):
        mha.scaled_dot_product_attention(X, X, X)


def test_an_unknown_name_lists_the_known_ones():
    no_operation = r"no operation that kernels compute is named 'atention'; expected one of .*did you mean 'attention'"
    no_kernel = r"no kernel for 'attention' is named 'sdap'; there are .*sdpa.*algebra.*did you mean 'sdpa'"
    for op, name, message in (("attention", "sdap", no_kernel), ("atention", "sdpa", no_operation)):
        with pytest.raises(mha.UnknownKernel, match=message) as error, mha.use_kernel(op, name):
            pass
        assert isinstance(error.value, LookupError)


def activation_forgotten(x, w_1, b_1, w_2, b_2, *, activation):
    return (x @ w_1 + b_1) @ w_2 + b_2


def test_a_larger_kernel_is_passed_over_if_use_kernel_demands_a_smaller_one(installed):
    installed(a_kernel("feed_forward", load=f"{__name__}:activation_forgotten"))
    assert mha.explain("feed_forward", X, W, B, W, -B).kernel == "sample"
    with mha.use_kernel("linear", "algebra"):
        explanation = mha.explain("feed_forward", X, W, B, W, -B)
        assert explanation.kernel is None
        reason = "use_kernel is in force for 'linear', which it may compute itself"
        assert explanation.rejected == (("sample", reason), ("chunks", reason))
    with mha.use_kernel("linear", "algebra"), mha.use_kernel("feed_forward", "sample"):
        assert mha.explain("feed_forward", X, W, B, W, -B).kernel == "sample"


def test_use_kernel_applies_only_to_its_own_thread(installed):
    installed(a_kernel("relu", name="one"))
    with mha.use_kernel("relu", "algebra"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: mha.explain("relu", -np.ones(3)).kernel).result() == "one"
        assert mha.explain("relu", -np.ones(3)).kernel is None


# broken kernels

UNSURE = "cannot say whether it supports the call"
BROKEN = {
    "module": ({"load": "no_such_module:relu"}, "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    "function": ({"load": "sample_kernels:no_such"}, "cannot be loaded: AttributeError"),
    "supports": ({"supports": lambda call: 1 / 0}, f"{UNSURE}: ZeroDivisionError"),
    "supports exits": ({"supports": lambda call: sys.exit(3)}, f"{UNSURE}: SystemExit: 3"),
    "module of supports": ({"supports": "no_such_module:supports"}, f"{UNSURE}: ModuleNotFoundError: No module named 'no_such"),
    "function of supports": (
        {"supports": "sample_kernels:no_such"},
        f"{UNSURE}: AttributeError: module 'sample_kernels' has no",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_kernel_is_passed_over_with_a_warning(installed, changes, reason):
    installed(a_kernel("relu", name="broken", **changes))
    y = -np.ones(3)
    with pytest.warns(mha.KernelWarning, match=rf"kernel 'broken' for relu on numpy \(Plugin\) {re.escape(reason)}"):
        np.testing.assert_array_equal(mha.relu(y), 0)
    np.testing.assert_array_equal(mha.relu(y), 0)  # one warning for each signature
    with pytest.warns(mha.KernelWarning):
        assert mha.explain("relu", np.ones(5)).rejected[0].reason.startswith(reason)
    with (
        pytest.warns(mha.KernelWarning),
        mha.use_kernel("relu", "broken"),
        pytest.raises(mha.KernelUnsupported, match=re.escape(reason)),
    ):
        mha.relu(y)


# decisions are cached by the whole signature


def test_a_wrong_call_is_refused_after_a_similar_correct_one():
    mha.attention_state(X, X, X, mask=mha.causal(), query_offset=1, scale=1)
    with pytest.raises(TypeError, match="query_offset is bool"):
        mha.attention_state(X, X, X, mask=mha.causal(), query_offset=True, scale=1)
    with pytest.raises(TypeError, match="scale is bool"):
        mha.attention_state(X, X, X, mask=mha.causal(), query_offset=1, scale=True)
    with pytest.raises(TypeError, match="query_offset is float"):
        mha.attention_state(X, X, X, mask=mha.causal(), query_offset=1.0, scale=1)
    mha.layer_norm(X, eps=1.0)
    with pytest.raises(TypeError, match="eps is bool"):
        mha.layer_norm(X, eps=True)
    mha.relu(X)
    for wrong in (X.astype(np.int32), X.tolist(), None):
        with pytest.raises(TypeError, match=r"^x "):
            mha.relu(wrong)
    with mha.use_backend("torch"), pytest.raises(mha.BackendMismatch):
        mha.relu(X)


def test_the_cache_keeps_no_arrays():
    import gc
    import weakref

    arrays = [np.ones((1, 3, 4)) for _ in range(4)]
    gone = [weakref.ref(x) for x in arrays]
    mha.attention_state(*arrays[:3], mask=mha.window(1, 0), sink=arrays[3][0, 0, :1])
    mha.linear(arrays[0], arrays[3][0].T)
    del arrays
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4


@pytest.mark.parametrize("feature", FEATURES)
def test_a_cached_decision_gives_the_same_bits_as_a_new_one(rng, feature):
    for _ in range(3):
        call = a_call(rng, feature)
        state = mha.attention_state(**call)
        again = mha.attention_state(**call, scale=np.float64(1 / math.sqrt(8)))  # not a Python float: the cache is not used
        np.testing.assert_array_equal(state.out, again.out)
        np.testing.assert_array_equal(state.lse, again.lse)


def test_kernels_can_be_registered_and_unregistered_while_threads_call():
    stop, plugin, y = threading.Event(), Plugin([a_kernel("relu")]), np.asarray([-1.0, 2.0])

    def calling():
        while not stop.is_set():
            z = mha.relu(y)
            assert z is y or z.tolist() == [0.0, 2.0]

    with ThreadPoolExecutor(3) as pool:
        callers = [pool.submit(calling) for _ in range(3)]
        for _ in range(200):
            with registered(plugin):
                pass
        stop.set()
    for caller in callers:
        caller.result()
    np.testing.assert_array_equal(mha.relu(np.asarray([-1.0])), 0)
    received.clear()
