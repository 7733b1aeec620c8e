"""The cross-entropy and its gradient against torch and closed forms; the conformance suite judges them on every backend."""

import math
from types import ModuleType

import needs
import numpy as np
import pytest

from mha_core.algebra.attention import exponentials
from mha_core.algebra.losses import cross_entropy, cross_entropy_vjp
from mha_core.dispatch.backend import load

jax, torch = needs.Library("jax"), needs.Library("torch")
CLASSES = 7
SETTINGS = [(-100, 0.0), (-100, 0.1), (2, 0.0), (2, 0.3), (None, 0.0), (None, 0.9)]
each_setting = pytest.mark.parametrize(("ignore", "label_smoothing"), SETTINGS)


def problem(rng, shape=(4, 5), *, ignore=None, scale=3.0):
    """Return logits, and labels of which about a third are ``ignore``."""
    labels = rng.integers(0, CLASSES, size=shape)
    if ignore is not None:
        labels = np.where(rng.random(size=shape) < 0.3, ignore, labels)
    return scale * rng.normal(size=(*shape, CLASSES)), labels


def loss_and_gradient(backend, logits, labels, *, ignore=None, label_smoothing=0.0, d_out=1.0):
    """Return both as NumPy arrays of the dtype of the logits."""
    x, y = backend.from_numpy(logits), backend.from_numpy(np.asarray(labels))
    options = {"ignore": ignore, "label_smoothing": label_smoothing}
    loss = cross_entropy(backend.xp, x, y, **options)
    gradient = cross_entropy_vjp(backend.xp, x, y, backend.from_numpy(np.asarray(d_out, dtype=logits.dtype)), **options)
    assert loss.shape == () and loss.dtype == gradient.dtype == x.dtype and tuple(gradient.shape) == logits.shape
    return backend.to_numpy(loss), backend.to_numpy(gradient)


def by_torch(logits, labels, *, ignore, label_smoothing, d_out=1.0):
    x = torch.tensor(logits, requires_grad=True)
    rows, answers = x.reshape(-1, logits.shape[-1]), torch.tensor(labels).reshape(-1)
    ignored = {} if ignore is None else {"ignore_index": ignore}
    loss = torch.nn.functional.cross_entropy(rows, answers, label_smoothing=label_smoothing, **ignored)
    (gradient,) = torch.autograd.grad(loss, x, torch.tensor(d_out, dtype=x.dtype))
    return loss.detach().numpy(), gradient.numpy()


@each_setting
def test_loss_and_gradient_are_those_of_torch(backend, rng, ignore, label_smoothing):
    logits, labels = problem(rng, ignore=ignore)
    options = {"ignore": ignore, "label_smoothing": label_smoothing, "d_out": -0.7}
    loss, gradient = loss_and_gradient(backend, logits, labels, **options)
    expected, expected_gradient = by_torch(logits, labels, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-14)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-16)


@each_setting
@pytest.mark.parametrize("excluded", [False, True])
def test_autograd_through_the_loss_agrees_with_the_gradient(rng, ignore, label_smoothing, excluded):
    logits, labels = problem(rng, ignore=ignore)
    if excluded:
        logits[..., 3] = -np.inf
        labels[labels == 3] = 4
    options = {"ignore": ignore, "label_smoothing": label_smoothing}
    _, gradient = loss_and_gradient(load("torch"), logits, labels, **options)
    x = torch.tensor(logits, requires_grad=True)
    cross_entropy(load("torch").xp, x, torch.tensor(labels), **options).backward()
    np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-13, atol=1e-16)


HUGE = {name: float(np.finfo(name).max) / 4 for name in ("float32", "float64")}
CLOSED_FORMS = {
    "one row without batch axes": ([0.0, math.log(3.0)], 1, math.log(4 / 3), [0.25, -0.25]),
    "no label that counts": (np.ones((3, 2, 4)), np.full((3, 2), -100), 0.0, np.zeros((3, 2, 4))),
    "no label": (np.ones((0, 4)), np.zeros(0, dtype=int), 0.0, np.zeros((0, 4))),
    "an excluded label": ([[0.0, -np.inf, 1.0]], [1], np.inf, [[1 / (1 + math.e), -1.0, math.e / (1 + math.e)]]),
    "all labels excluded": ([[-np.inf] * 3], [1], np.inf, [[0.0, -1.0, 0.0]]),
    **{
        f"huge logits in {name}": (
            *(np.asarray([[huge, -huge, 0.0], [-huge, -huge, -huge]], dtype=name), [0, 2], math.log(3) / 2),
            [[0, 0, 0], [1 / 6, 1 / 6, -1 / 3]],
        )
        for name, huge in HUGE.items()
    },
}


@pytest.mark.parametrize(("logits", "labels", "loss", "gradient"), CLOSED_FORMS.values(), ids=CLOSED_FORMS)
def test_closed_forms(backend, logits, labels, loss, gradient):
    got = loss_and_gradient(backend, np.asarray(logits), labels, ignore=-100)
    for actual, expected in zip(got, (loss, gradient), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6 if actual.dtype == np.float32 else 1e-15)
    if loss == np.inf:
        smoothed, gradient = loss_and_gradient(backend, np.asarray(logits), labels, label_smoothing=0.2)
        assert smoothed == np.inf and gradient[0, 1] == -0.8 and np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64])
@pytest.mark.parametrize("ignore", [None, -100, 2])
def test_labels_of_any_integer_dtype(backend, rng, dtype, ignore):
    """156 and -100 are the same bits in eight."""
    logits, labels = problem(rng)
    expected = by_torch(logits, labels, ignore=ignore, label_smoothing=0.0)
    got = loss_and_gradient(backend, logits, labels.astype(dtype), ignore=ignore)
    for each, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(each, right, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_half_precision_is_rounded_once(rng, name, dtype):
    backend = load(name)
    xp, half = backend.xp, getattr(backend.xp, dtype)
    logits, labels = problem(rng, (300,), ignore=1)
    x = xp.astype(backend.from_numpy(logits), half)
    wide = xp.astype(x, xp.float32)
    y, options = backend.from_numpy(labels), {"ignore": 1, "label_smoothing": 0.1}
    loss, expected = (cross_entropy(xp, each, y, **options) for each in (x, wide))
    assert loss.dtype == half and bool(xp.all(loss == xp.astype(expected, half)))
    gradient, expected = (cross_entropy_vjp(xp, each, y, xp.ones((), dtype=each.dtype), **options) for each in (x, wide))
    assert gradient.dtype == half and bool(xp.all(gradient == xp.astype(expected, half)))


def test_jax_agrees_under_jit(rng):
    logits, labels = problem(rng, ignore=2)
    logits = logits.astype(np.float32)
    options = {"ignore": 2, "label_smoothing": 0.1}
    expected, expected_gradient = loss_and_gradient(load("numpy"), logits, labels, **options)

    @jax.jit
    def computed(x, y):
        value, by_jax = jax.value_and_grad(lambda x: cross_entropy(jax.numpy, x, y, **options))(x)
        return value, by_jax, cross_entropy_vjp(jax.numpy, x, y, jax.numpy.float32(1.0), **options)

    value, *gradients = computed(logits, labels)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_maximum_of_a_row_is_a_constant_to_a_library_that_has_such():
    """Gradients of a maximum divide by how many elements equal it, and no loss or weight depends on it."""
    xp, constants = ModuleType("mylibrary"), []
    vars(xp).update({name: x for name, x in vars(np).items() if not name.startswith("__")})
    xp.stop_gradient = lambda x: constants.append(x) or x
    x = np.array([[1.0, 3.0, 2.0], [0.0, -1.0, -2.0]])
    cross_entropy(xp, x, np.array([0, 1]), ignore=None, label_smoothing=0.0)
    exponentials(xp, x)
    assert [c.tolist() for c in constants] == [[[3.0], [0.0]]] * 2
