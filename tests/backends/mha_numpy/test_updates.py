"""AdamW on NumPy: the same numbers as the algebra, whatever the shapes, strides and threads."""

import numpy as np
import pytest
from memory_views import VIEWS

import mha_core as mha
from mha_core.algebra import updates as algebra
from mha_core.ops.updates import adamw
from mha_numpy import updates

OPTIONS = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "step": 2}
SHAPES = [(1,), (3, 0), (2, 3, 5), (updates._TASK - 1,), (updates._TASK,), (updates._TASK + 1,), (3 * updates._TILE + 7, 2)]


def arrays(rng, shape, dtype):
    """Return w, gradient, m and v."""
    w, gradient, m, v = (rng.normal(size=shape).astype(dtype) for _ in range(4))
    return w, gradient, m, np.abs(v)


def close(got, expected, dtype):
    for each, right in zip(got, expected, strict=True):
        assert each.dtype == dtype and each.shape == right.shape
        np.testing.assert_allclose(each, right, rtol=20 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("changes", [{}, {"gradient_scale": np.asarray(0.25)}, {"beta_1": 0.0, "beta_2": 0.0, "step": 0}])
def test_it_is_the_algebra(rng, shape, dtype, changes, blas_count):
    given, options = arrays(rng, shape, dtype), OPTIONS | changes
    expected = algebra.adamw(np, *given, **options)
    close(updates.adamw(*(x.copy() for x in given), **options), expected, dtype)


def test_it_writes_into_the_moments_and_nothing_else(rng):
    w, gradient, m, v = arrays(rng, (1000, 300), np.float32)
    w.flags.writeable = gradient.flags.writeable = False
    new, new_m, new_v = updates.adamw(w, gradient, m, v, **OPTIONS)
    assert new_m is m and new_v is v
    assert not any(np.shares_memory(new, x) for x in (w, gradient, m, v))


def test_moments_that_cannot_be_written_to_are_copied(rng):
    given = arrays(rng, (30, 40), np.float32)
    before, expected = [x.copy() for x in given], algebra.adamw(np, *given, **OPTIONS)
    for x in given:
        x.flags.writeable = False
    close(updates.adamw(*given, **OPTIONS), expected, np.float32)
    assert all((x == y).all() for x, y in zip(given, before, strict=True))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strides_do_not_matter(rng, view):
    given = [view(x) for x in arrays(rng, (2, 250, 400), np.float32)]
    expected = algebra.adamw(np, *given, **OPTIONS)
    close(updates.adamw(*given, **OPTIONS), expected, np.float32)


def test_a_gradient_that_is_clipped_does_not_overflow(rng):
    """The gradient is scaled before it is squared."""
    w, gradient, m, v = arrays(rng, (1000,), np.float32)
    got = updates.adamw(w, gradient * np.float32(1e30), m, v, **OPTIONS, gradient_scale=1e-30)
    assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("elements", [0, 1, updates._TASK - 1, updates._TASK, 147456, 589824, 11720448])
def test_every_thread_gets_as_many_tiles(elements, blas_count):
    size = updates._tile_size(elements)
    tiles = len(range(0, elements, size))
    assert 0 < size <= max(updates._TILE, updates._TASK)
    assert tiles <= 1 if elements < updates._TASK else tiles % 4 == 0


def test_half_precision_is_left_to_the_algebra(rng):
    given = arrays(rng, (3,), np.float16)
    with mha.use_kernel("adamw", "chunks"), pytest.raises(mha.KernelUnsupported, match="float32 or float64, not float16"):
        adamw(*given, **OPTIONS)
    close(adamw(*given, **OPTIONS), algebra.adamw(np, *given, **OPTIONS), np.float16)
