"""The tape: recordings inside recordings, arrays that are written to, copies, names that collide, and memory of gradients."""

import copy
import pickle

import numpy as np
import pytest
from refusals import refusals

import mha_core as mha
from mha_core.dispatch.backend import load

ONES, GRADIENT = np.ones(3), mha.value_and_grad


def inner(function, at=None):
    """Return a loss of an array: the value, or the gradient, of a function of two inside it; the first is all ones there."""

    def loss(a):
        value, gradient = GRADIENT(lambda b: function(b, a))(a * 0 + 1 if at == "recorded" else ONES)
        return value if at is None else np.sum(gradient)

    return loss


def pickled(x):
    return np.sum(pickle.loads(pickle.dumps(x)))


MEETS = "an array whose gradient is recorded meets one of a value_and_grad or vjp inside it"
COPIED = "an array whose gradient is recorded was copied or pickled"
NUMBER = "the number in an array whose gradient is recorded was asked for"
test_what_would_lose_a_gradient_raises = refusals(
    {
        TypeError: {
            f"{MEETS}: gradients of gradients need a library with its own, such as torch": lambda: GRADIENT(
                inner(lambda b, a: np.sum(b * a))
            )(ONES),
            MEETS + ": ": lambda: GRADIENT(inner(lambda b, a: np.sum(b * a), at="plain"))(ONES),
            "a gradient is recorded already": lambda: GRADIENT(inner(lambda b, a: np.sum(b * b), at="recorded"))(ONES),
            MEETS: lambda: GRADIENT(lambda a: np.sum(mha.vjp(lambda b: b * a, ONES)[0]))(ONES),
            COPIED: lambda: GRADIENT(lambda x: np.sum(copy.deepcopy(x)))(ONES),
            COPIED + ", which": lambda: GRADIENT(pickled)(ONES),
            COPIED + ", which would": lambda: GRADIENT(lambda layer: np.sum(copy.deepcopy(layer)(ONES[None])))(
                mha.FeedForward.init(d_model=3, d_ff=4, seed=0, dtype="float64")
            ),
            NUMBER: lambda: GRADIENT(lambda x: np.sum(np.asarray(x)))(ONES),
            NUMBER + ", which": lambda: GRADIENT(lambda x: np.sum(np.array([x, x])))(ONES),
        }
    }
)


def test_a_recording_inside_another_that_does_not_meet_it():
    value, gradient = GRADIENT(lambda a: inner(lambda b, _: np.sum(b * b))(a) + np.sum(a))(ONES)
    assert value == 6 and (gradient == 1).all()
    value, gradient = GRADIENT(inner(lambda b, a: np.sum(a * a)))(
        ONES
    )  # the inner function returns what only the outer records
    assert value == 3 and (gradient == 2).all()
    value, gradient = GRADIENT(lambda a: np.sum(mha.vjp(lambda b: a * a, ONES)[0]))(ONES)
    assert value == 3 and (gradient == 2).all()
    _, pullback = mha.vjp(lambda b: b * b, ONES)
    value, gradient = GRADIENT(lambda a: np.sum(pullback(a)[0]))(ONES)
    assert value == 6 and (gradient == 2).all()


@pytest.mark.parametrize("keys", [(0, "0"), ("a.b", "a")])
def test_arrays_of_one_name_have_gradients_of_their_own(keys):
    first, second = keys
    model = {first: ONES, second: {"b": 2 * ONES} if second == "a" else 2 * ONES}
    of = lambda model: model[second]["b"] if second == "a" else model[second]  # noqa: E731
    value, gradients = GRADIENT(lambda model: np.sum(3 * model[first] + of(model) * of(model)))(model)
    assert value == 3 * 3 + 3 * 4
    for gradients_by in (gradients, mha.vjp(lambda m: 3 * m[first] + of(m) * of(m), model)[1](ONES)[0]):
        assert (gradients_by[first] == 3).all() and (of(gradients_by) == 4).all()


# writes


def add_in_place(x):
    x += 1


def reverse(x):
    x[:] = x[::-1].copy()


MANY = np.random.default_rng(0).standard_normal((40, 60))
WRITES = {
    "one number": lambda x: x.__setitem__((3, 5), -x[3, 5]),
    "all": add_in_place,
    "order": reverse,
    "sort": np.ndarray.sort,
}
LAYOUTS = {
    "in order": lambda x: x,
    "columns": lambda x: x.T.copy().T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
}
REFUSED = r"an array of shape \(40, 60\) and dtype \w+ was written to after it was used"


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
def test_the_version_differs_after_any_write(write, layout, dtype):
    version, x = load("numpy").record.version, layout((10 * MANY).astype(dtype))
    before = version(x)
    assert version(x) == version(x.copy(order="K")) == before
    write(x)
    assert version(x) != before


def test_a_constant_that_is_written_to_after_its_use_is_noticed():
    def loss(x):
        y = MANY.copy()
        z = x * y
        y[0, 0] += 1e-9
        return np.sum(z)

    with pytest.raises(RuntimeError, match=REFUSED):
        GRADIENT(loss)(MANY)


@pytest.mark.parametrize("written", ["argument", "constant", "result"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_write_between_a_call_and_its_pullback_is_noticed(backend, written):
    arrays = [load(backend).from_numpy(MANY.copy()) for _ in range(2)]
    out, pullback = mha.vjp(lambda x: mha.silu(x) * arrays[1], arrays[0])
    d = out * 0 + 1
    before = pullback(d)[0]
    assert (pullback(d)[0] == before).all()
    {"argument": arrays[0], "constant": arrays[1], "result": out}[written][0, 0] += 1.0
    with pytest.raises(RuntimeError, match=REFUSED.replace(r"\w+", r"[\w.]+")):
        pullback(d)


@pytest.mark.parametrize(
    "attend", [mha.scaled_dot_product_attention, lambda q, k, v: mha.attention_state(q, k, v, mask=mha.causal()).out]
)
def test_a_write_into_keys_of_attention_is_noticed(attend, rng):
    query, key, value = (rng.standard_normal((2, 40, 60)) for _ in range(3))
    _, pullback = mha.vjp(lambda q: attend(q, key, value), query)
    key[0, 0, 0] = 0
    with pytest.raises(RuntimeError, match=r"shape \(2, 40, 60\).* was written to"):
        pullback(query)


# memory

SHARING = {
    "both numbers of a sum": lambda x, y: x + y,
    "a view": lambda x, y: x.__array_namespace__().reshape(x, (3, 1)) + y.__array_namespace__().reshape(y, (3, 1)),
    "one argument alone": lambda x, y: x,
    "parts of one": lambda x, y: x.__array_namespace__().concat([x, y]),
    "numbers for all": lambda x, y: x.__array_namespace__().sum(x) + x.__array_namespace__().sum(y),
    "merged states": lambda x, y: (
        mha.merge_states(*(mha.AttentionState(z[None, :, None], x.__array_namespace__().zeros((1, 3))) for z in (x, y))).out
    ),
}


@pytest.mark.parametrize("function", SHARING.values(), ids=SHARING)
def test_gradients_share_no_memory(function):
    out, pullback = mha.vjp(function, ONES.copy(), ONES.copy())
    d = np.ones_like(out)
    gradients = pullback(d)
    arrays = [d, *gradients, *pullback(d)]
    assert all(x.flags.writeable for x in arrays)
    assert not any(np.shares_memory(x, y) for at, x in enumerate(arrays) for y in arrays[:at])
    _, gradients = GRADIENT(lambda pair: np.sum(function(*pair)))((ONES, 2 * ONES))
    assert not np.shares_memory(*gradients) and all(x.flags.writeable for x in gradients)
