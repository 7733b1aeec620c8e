"""The transforms that conformance applies, on functions with several results."""

import jax.numpy as jnp
import numpy as np

from mha_jax import transforms


def both(x, y):
    return x * y, x + 1


def test_gradients_are_those_of_the_results_times_arrays():
    x, y, d, e = (jnp.asarray(np.random.default_rng(at).standard_normal(3)) for at in range(4))
    d_x, d_y = transforms.gradient(both, [x, y], [d, e])
    assert np.allclose(d_x, y * d + e) and np.allclose(d_y, x * d)


def test_a_mapped_function_sees_one_element_of_every_array():
    x, y = jnp.ones((4, 3)), jnp.arange(12.0).reshape(4, 3)
    products, sums = transforms.vmap(lambda x, y: (x @ y, *both(x, y)[1:]), [x, y])
    assert np.allclose(products, y.sum(axis=1)) and sums.shape == (4, 3)
