"""Arrays that a backend refuses although they are of its library: every operation refuses them, in the same words."""

import warnings

import numpy as np
import pytest
from sample_kernels import a_backend

import mha_core as mha


def a_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(np.eye(4))


MASKED = np.ma.masked_array(np.eye(4), np.eye(4) > 0)
REFUSED = {
    "matrix": (a_matrix(), r"is a numpy\.matrix, whose \* is a matrix product: write numpy\.asarray\(\.\.\.\)"),
    "masked": (
        MASKED,
        r"is a masked array, and its mask would be ignored: write \.filled\(0\); mask= of attention says which keys",
    ),
    **{
        kind: (
            np.eye(4).astype(f">{kind}"),
            rf"has dtype >{kind}, whose bytes are in another order: write \.astype\('{name}'\)",
        )
        for kind, name in (("f2", "float16"), ("f4", "float32"), ("f8", "float64"))
    },
}
W = np.eye(4)
OPERATIONS = {
    **{name: lambda x, name=name: getattr(mha, name)(x, x, x) for name in ("scaled_dot_product_attention", "attention_state")},
    **{name: lambda x, name=name: getattr(mha, name)(x, x) for name in ("attention_weights", "linear")},
    **{name: getattr(mha, name) for name in ("layer_norm", "rms_norm", "gelu", "relu", "silu")},
    "one of three": lambda x: mha.scaled_dot_product_attention(W, W, x),
    "merge_states": lambda x: mha.merge_states((x, x[0])),
    "multi_head_attention": lambda x: mha.multi_head_attention(x, x, x, x, x, 2),
    "feed_forward": lambda x: mha.feed_forward(x, x, None, x, None),
    "rotary": lambda x: mha.rotary(x, W[:, :2], W[:, :2], interleaved=True),
    "bias": lambda x: mha.scaled_dot_product_attention(W, W, W, bias=x),
    "sink": lambda x: mha.scaled_dot_product_attention(*(np.ones((4, 3, 4)),) * 3, sink=x[0]),
}


@pytest.mark.parametrize("array", REFUSED)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_refuses_it_in_words(array, operation):
    x, message = REFUSED[array]
    with pytest.raises(TypeError, match=message):
        OPERATIONS[operation](x)


def test_a_mask_of_another_kind_is_refused_too():
    mask = np.ma.masked_array(np.ones((4, 4), dtype=bool), np.eye(4))
    with pytest.raises(TypeError, match=r"mask.* is a masked array"):
        mha.scaled_dot_product_attention(W, W, W, mask=mask)


@pytest.mark.parametrize("array", REFUSED)
def test_what_the_message_says_to_write_is_accepted(array):
    x, message = REFUSED[array]
    convert = {"matrix": np.asarray, "masked": lambda x: x.filled(0)}.get(array, lambda x: x.astype(message.split("'")[1]))
    assert mha.relu(convert(x)).dtype.isnative


def test_other_subclasses_are_accepted(tmp_path):
    mapped = np.memmap(tmp_path / "x", dtype=np.float64, shape=(4, 4), mode="w+")
    np.testing.assert_array_equal(mha.relu(mapped), 0)


def test_a_backend_says_which_arrays_it_refuses(installed):
    refuses = lambda x: f"has {x.ndim} axes: write one" * (x.ndim > 1) or None  # noqa: E731
    installed(backends=[a_backend("picky", types=("numpy:memmap",), refuses=refuses)])
    with pytest.raises(TypeError, match=r"^x has 2 axes: write one$"):
        mha.relu(np.ones((2, 2)).view(np.memmap))
    assert mha.relu(np.ones(2).view(np.memmap)).shape == (2,)
