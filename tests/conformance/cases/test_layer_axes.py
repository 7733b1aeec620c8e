"""Which values of the axes of layers are possible together."""

import pytest

from mha_conformance.cases.layer_axes import possible

PLAIN = {
    "queries": 4,
    "kv_heads": 1,
    "groups": 1,
    "head_dim": 1,
    "value_dim": "the same",
    "d_model": 8,
    "d_ff": 1,
    "offset": "none",
}
PLAIN |= {"b of heads": (), "b of network": "none"}


@pytest.mark.parametrize(
    ("norm", "bias"), [("post_norm_1", {"b of heads": ("b_o",)}), ("post_norm_2", {"b of network": "b_2"})]
)
@pytest.mark.parametrize("wider", [{"value_dim": 2, "d_ff": 2}, {"groups": 2, "d_ff": 2}])
def test_no_norm_is_of_multiples_of_one_row(norm, bias, wider):
    """Only their signs would be left, which rounding may turn."""
    assert possible(PLAIN)
    assert not possible(PLAIN | {norm: "RMSNorm"})
    assert possible(PLAIN | {norm: "RMSNorm"} | bias)
    assert possible(PLAIN | {norm: "RMSNorm"} | wider)
