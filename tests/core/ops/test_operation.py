"""A plan is kept for equal calls only: what a check or a kernel depends on is part of its key."""

import gc
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
from processes import printed
from sample_kernels import a_kernel

import mha_core as mha
from mha_core.algebra.biases import Bias
from mha_core.algebra.grid import Grid
from mha_core.algebra.masks import Mask
from mha_core.dispatch.contract import LAYER_FEATURES
from mha_core.ops import attend_vjp, attention


@dataclass(frozen=True, eq=False)
class Constant(Bias):
    """A bias that depends on the type of its field."""

    value: object

    def block(self, grid):
        slope = float(len(repr(self.value)))
        return slope * grid.xp.astype(grid.key_index, grid.xp.float64)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A mask that core does not know."""

    def block(self, grid):
        return grid.key_index <= grid.query_position


class Shifted(Causal):
    """One with an attribute that is not a field."""

    def __init__(self, by):
        object.__setattr__(self, "by", by)

    def block(self, grid):
        return grid.key_index <= grid.query_position + self.by


@pytest.mark.parametrize("pair", [(1, (1,)), (1, True), (1.0, True), ((1, 2.0), (True, 2.0))], ids=str)
def test_biases_whose_fields_differ_in_type_share_no_plan(pair, rng):
    assert Constant(pair[0]).key != Constant(pair[1]).key
    x = rng.normal(size=(4, 6, 8))
    for value in pair:
        bias = Constant(value)
        expected = mha.scaled_dot_product_attention(x, x, x, bias=bias.block(Grid(np, None, range(6), range(6))))
        np.testing.assert_allclose(mha.scaled_dot_product_attention(x, x, x, bias=bias), expected, rtol=0, atol=1e-14)


def test_a_mask_with_attributes_that_are_not_fields_has_no_key(rng):
    x = rng.normal(size=(4, 6, 8))
    assert Causal().key is not None
    assert Shifted(0).key is None
    causal, shifted = (mha.scaled_dot_product_attention(x, x, x, mask=Shifted(by)) for by in (0, 2))
    expected = mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())
    np.testing.assert_allclose(causal, expected, rtol=0, atol=1e-14)
    assert not np.allclose(shifted, expected)


def test_block_masks_keep_their_plans_and_no_plan_keeps_them(rng, monkeypatch):
    planned = []
    x, other = (rng.normal(size=(2, n, 8)) for n in (128, 96))
    documents = np.arange(129) // 32
    for ours in (attention._attention, attend_vjp.attention_gradients):
        plan = ours.plan
        monkeypatch.setattr(ours, "plan", lambda *arguments, plan=plan: planned.append(arguments[0]) or plan(*arguments))

    def step(mask, x=x, query_offset=0):
        out, pullback = mha.vjp(mha.scaled_dot_product_attention, x, x, x, mask=mask, query_offset=query_offset)
        return out, *pullback(out)

    def mapped(shift):
        function = mha.mask_function(lambda b, h, q, k, of: of[q] == of[k], [documents + (np.arange(129) < shift)])
        return mha.block_mask(function, 128, 128)

    first, second = mapped(0), mapped(40)
    results = [step(mask) for mask in (first, second, first, second)]
    number = len(planned)
    assert number > 0
    for mask, expected in zip((first, second), results, strict=False):
        for a, b in zip(step(mask), expected, strict=True):
            assert (a == b).all()
    assert len(planned) == number, "calls with equal keys were planned again"
    assert not np.allclose(results[0][0], results[1][0])
    step(first, x=x + 1, query_offset=1)
    assert len(planned) > number
    with pytest.raises(ValueError, match="was made for 128 queries and 128 keys; there are 96 and 96"):
        step(first, x=other)

    ends = weakref.ref(first)
    del first, mask
    gc.collect()
    assert ends() is None


def test_layers_with_other_parts_share_no_plan(installed):
    """A norm with a weight alone, and one with a bias alone, have the same shapes, features and settings."""
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, seed=0)
    asked = []
    kernel = a_kernel("encoder_layer", handles=LAYER_FEATURES, supports=lambda call: asked.append(call) or "not today")
    installed(kernel)
    ones = np.ones(8, dtype=np.float32)
    for norm in (mha.LayerNorm(ones, None), mha.LayerNorm(None, ones)):
        replace(layer, norm_1=norm)(np.ones((3, 8), dtype=np.float32))
    assert [call.shape("norm_1.weight") for call in asked] == [(8,), None]


def test_the_number_of_heads_is_checked_whatever_was_planned_before():
    x, w = np.ones((2, 4)), np.eye(4)
    mha.multi_head_attention(x, w, w, w, w, 2, num_kv_heads=2)
    with pytest.raises(TypeError, match="num_heads is float; expected an int"):
        mha.multi_head_attention(x, w, w, w, w, 2.0, num_kv_heads=2)


def test_a_setting_that_is_a_numpy_float_is_a_setting():
    assert mha.LayerNorm.init(d_model=4, eps=np.float64(1e-3)).settings == {"eps": 1e-3}


PATH_TO_KERNEL = """
import sys
from pathlib import Path
import numpy as np
import mha_core as mha

core = Path(mha.__file__).parent
x = np.ones((1, 1024, 8), dtype=np.float32)


def files():
    names = []

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & 1:  # no body of a module or class
            names.append((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(profile)
    mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())
    sys.setprofile(None)
    kernel = max(i for i, (file, name) in enumerate(names) if file.endswith("attention/kernel.py") and name == "attention")
    return {file for file, name in names[:kernel] if core in Path(file).parents}


print(len(files()), len(files()))
"""


def test_few_files_lie_on_the_way_to_a_kernel():
    """In the first call of a process, which also finds the plugins, and in a call like an earlier one."""
    first, later = map(int, printed(PATH_TO_KERNEL).split())
    assert first <= 14  # masks, tiles and the structure of a mask are modules of their own
    assert later <= 5
