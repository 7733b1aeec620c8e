"""Right kernels of the gradients of attention: ``WholeGradients`` in float32, with one or two steps replaced."""

import numpy as np
from whole_gradients import WholeGradients

from .attention import backwards, flushed, in_base_2, one_by_one, with_flushes


class InFloat32(WholeGradients):
    dtype = np.float32


class PowersOfTwo(InFloat32):
    """FlashAttention's backward pass."""

    @property
    def weights(self):
        return np.exp2(in_base_2(self, self.scores) - in_base_2(self, self.lse)[..., None])


class TwoProducts(InFloat32):
    @property
    def ds(self):
        return self.weights * self.d_weights - self.weights * self.delta[..., None]


class ScaledLast(InFloat32):
    """The products are multiplied by the scale, not their factors."""

    @property
    def da(self):
        return self.d_capped * self.slope

    def product(self, x, y):
        scaled = y is self.key or y is self.query
        return (x @ y) * np.float32(self.scale) if scaled else x @ y


class Backwards(InFloat32):
    product = staticmethod(backwards)


class OneByOne(InFloat32):
    product = staticmethod(one_by_one)


class Flushing(InFloat32):
    """Every factor, term and partial sum is flushed."""

    product = staticmethod(with_flushes)
    flushed = staticmethod(flushed)

    @property
    def weights(self):
        return self.flushed(super().weights)

    @property
    def d_weights(self):
        return self.flushed(super().d_weights)

    @property
    def ds(self):
        return self.flushed(super().ds)

    @property
    def da(self):
        return self.flushed(self.flushed(self.d_capped * self.slope) * np.float32(self.scale))


GRADIENTS = {
    "all is float64": WholeGradients,
    "all is float32": InFloat32,
    "an exponential is a power of two": PowersOfTwo,
    "weights times gradients, less weights times delta": TwoProducts,
    "products are scaled, not their factors": ScaledLast,
    "sums from the last": Backwards,
    "sums of one term at a time": OneByOne,
    "numbers below 2^-126 are flushed to 0": Flushing,
}
