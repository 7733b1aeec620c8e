"""The torch kernel ``varlen``, which runs on CUDA: its refusal reasons, and its shapes on torch's meta device."""

import pytest
import torch

import mha_core as mha
from mha_core.ops.attend import prepare
from mha_core.plugin import Call
from mha_torch import varlen

H, L, D = 4, 9, 8


def test_varlen_is_opt_in_and_refuses_the_cpu():
    query = key = value = torch.ones(H, L, D, dtype=torch.float16)
    explanation = mha.explain("attention", query, key, value[..., :0], mask=mha.packed([4, 5]))  # no other kernel takes it
    assert ("varlen", "is chosen only by use_kernel('attention', 'varlen')") in explanation.rejected
    with mha.use_kernel("attention", "varlen"), pytest.raises(mha.KernelUnsupported, match="it runs on CUDA, not on cpu"):
        mha.scaled_dot_product_attention(query, key, value, mask=mha.packed([4, 5]))


def test_varlen_gives_the_shapes_of_attention_on_the_meta_device():
    query, key, value = (torch.empty(heads, 9, 16, dtype=torch.float16, device="meta") for heads in (4, 2, 2))
    _, problem = prepare(query, key, value, mask=mha.packed([4, 5]) & mha.causal())
    out = varlen.attention(problem).out
    assert (out.shape, out.dtype) == ((4, 9, 16), torch.float16)
    query, key, value = (torch.empty(2, 4, length, 16, dtype=torch.float16, device="meta") for length in (3, 9, 9))
    _, problem = prepare(query, key, value, mask=mha.key_lengths(torch.empty(2, dtype=torch.int64, device="meta")))
    out = varlen.attention(problem).out
    assert (out.shape, out.dtype) == ((2, 4, 3, 16), torch.float16)


SCALE = (("scale", 0.25),)
REFUSED = {
    "needs either packed sequences or key lengths": (frozenset(), (2, 4, 9, 16)),
    "supports packed sequences without batch axes, not with 1": (frozenset({"packed"}), (2, 4, 9, 16)),
    "supports key lengths with one batch axis, not with 0": (frozenset({"key_lengths"}), (4, 9, 16)),
    "would align the band to the end of each length, not of the keys": (frozenset({"key_lengths", "causal"}), (2, 4, 9, 16)),
    "supports key lengths only without a gradient": (frozenset({"key_lengths", "gradient"}), (2, 4, 9, 16)),
    "needs a head_dim that is a multiple of 8 up to 256, not 12": (frozenset({"packed"}), (4, 9, 12)),
    "does not support empty axes": (frozenset({"packed"}), (4, 0, 16)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusal_reasons(reason):
    features, shape = REFUSED[reason]
    assert (
        varlen.supports(Call("attention", (("query", shape),), torch.float16, torch.device("cuda"), features, SCALE)) == reason
    )


def test_a_scale_that_is_not_positive_is_refused():
    for scale in (0.0, -0.25):
        call = Call(
            "attention",
            (("query", (4, 9, 16)),),
            torch.float16,
            torch.device("cuda"),
            frozenset({"packed"}),
            (("scale", scale),),
        )
        assert varlen.supports(call) == "may return NaN when scale <= 0"


def test_supported_calls():
    for features, shape in ((("packed", "causal", "gradient"), (4, 9, 16)), (("key_lengths",), (2, 4, 9, 16))):
        call = Call("attention", (("query", shape),), torch.bfloat16, torch.device("cuda"), frozenset(features), SCALE)
        assert varlen.supports(call) is None
