"""What ``vjp`` and ``value_and_grad`` refuse, and what they say."""

from dataclasses import dataclass

import numpy as np
from normal import normal
from refusals import refusals

import mha_core as mha
from mha_core.algebra.biases import Bias


def pulled(d):
    return mha.vjp(mha.relu, normal(3))[1](d)


def of_state(d):
    x = normal(1, 3, 4)
    return mha.vjp(mha.attention_state, x, x, x)[1](d)


def with_cache():
    layer = mha.MultiHeadAttention.init(d_model=4, num_heads=2, seed=0, dtype="float64")
    return mha.vjp(layer, normal(3, 4), cache=mha.KeyValueCache())


def with_learned(option):
    """NumPy's sum returns a number, which would pass for a plain one."""
    x = normal(1, 3, 4)
    return mha.value_and_grad(lambda s: np.sum(mha.scaled_dot_product_attention(x, x, x, **{option: np.sum(s)})))(np.ones(2))


@dataclass(frozen=True, eq=False)
class TwoArrays(Bias):
    first: np.ndarray
    second: np.ndarray

    def block(self, grid):
        return self.first + self.second


def of_two_arrays():
    x = normal(1, 3, 4)
    bias = TwoArrays(normal(3, 3), normal(3, 3))
    return mha.vjp(mha.scaled_dot_product_attention, x, x, x, bias=bias)


def second(x):
    return mha.value_and_grad(lambda y: np.sum(y * y))(x)[0]


test_bad_input_gets_a_clear_error = refusals(
    {
        TypeError: {
            "what is str; expected an operation": lambda: mha.vjp("gelu", normal(3)),
            "no argument holds a floating array": lambda: mha.vjp(lambda n: n, 3),
            "d_out has dtype float32": lambda: pulled(normal(3, dtype=np.float32)),
            "d_out is list": lambda: pulled([1.0, 2.0, 3.0]),
            "d_out is ndarray; expected 2 gradients": lambda: of_state(normal(1, 3, 4)),
            "scale has no rule for gradients: pass a plain number": lambda: with_learned("scale"),
            "softcap has no rule for gradients": lambda: with_learned("softcap"),
            "a second array of the bias has no rule for gradients": of_two_arrays,
            "a gradient is recorded already": lambda: mha.value_and_grad(second)(normal(3)),
            "returned float": lambda: mha.value_and_grad(lambda x: 1.0)(normal(3)),
            "function is int": lambda: mha.value_and_grad(3),
        },
        ValueError: {
            "d_out has shape (2,); expected the shape": lambda: pulled(normal(2)),
            "d_out.lse has shape": lambda: of_state((None, normal(2))),
            "cache is given while gradients are recorded": with_cache,
            "returned an array of shape (3,)": lambda: mha.value_and_grad(mha.relu)(normal(3)),
        },
    }
)
