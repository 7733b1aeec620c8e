"""What ``vjp`` and ``value_and_grad`` refuse, and what they say."""

from dataclasses import dataclass

import numpy as np
import pytest
from normal import normal

import mha_core as mha
from mha_core.algebra.biases import Bias

ERRORS = {
    "what is a string": (TypeError, "what is str; expected an operation", lambda: mha.vjp("gelu", normal(3))),
    "no array": (TypeError, "no argument holds a floating array", lambda: mha.vjp(lambda n: n, 3)),
    "a shape": (ValueError, r"d_out has shape \(2,\); expected the shape", lambda: pulled(normal(2))),
    "a dtype": (TypeError, "d_out has dtype float32", lambda: pulled(normal(3, dtype=np.float32))),
    "a list": (TypeError, "d_out is list", lambda: pulled([1.0, 2.0, 3.0])),
    "a state": (TypeError, r"d_out is ndarray; expected 2 gradients", lambda: of_state(normal(1, 3, 4))),
    "a part of a state": (ValueError, r"d_out.lse has shape", lambda: of_state((None, normal(2)))),
    "a cache": (ValueError, "cache is given while gradients are recorded", lambda: with_cache()),
    "a learned scale": (TypeError, "scale has no rule for gradients: pass a plain number", lambda: with_learned("scale")),
    "a learned softcap": (TypeError, "softcap has no rule for gradients", lambda: with_learned("softcap")),
    "a bias of two arrays": (TypeError, "a second array of the bias has no rule for gradients", lambda: of_two_arrays()),
    "a gradient of a gradient": (TypeError, "a gradient is recorded already", lambda: mha.value_and_grad(second)(normal(3))),
    "a vector": (ValueError, r"returned an array of shape \(3,\)", lambda: mha.value_and_grad(mha.relu)(normal(3))),
    "a number": (TypeError, "returned float", lambda: mha.value_and_grad(lambda x: 1.0)(normal(3))),
    "not a function": (TypeError, "function is int", lambda: mha.value_and_grad(3)),
}


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


@pytest.mark.parametrize(("kind", "message", "call"), ERRORS.values(), ids=ERRORS)
def test_bad_input_gets_a_clear_error(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
