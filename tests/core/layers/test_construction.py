"""Layers made from sizes, dropout that is not one, and names of torch: what their errors tell the user to write."""

import copy
import inspect
import pickle
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from refusals import refusals
from together import for_each

import mha_core as mha

X = np.ones((3, 8), np.float32)
SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 8}
LAYER = mha.EncoderLayer.init(**SIZES, seed=0)
ENCODER, ATTENTION = mha.Encoder((LAYER,)), LAYER.attention
DECODER = mha.Decoder.init(**SIZES, num_layers=1, seed=0)
HEADS = {"num_heads": 2}


# sizes in place of layers and arrays


test_sizes_are_refused_where_layers_and_arrays_are_expected = refusals(
    {
        TypeError: {
            "layers of Encoder is 16; expected a tuple, each item Block: write Encoder.init(...)": lambda: mha.Encoder(16, 2),
            "layers of Decoder is 6; expected a tuple": lambda: mha.Decoder(layers=6),
            "norm of Encoder is True; expected LayerNorm or": lambda: mha.Encoder((LAYER,), True),
            "attention of EncoderLayer is 16; expected MultiHeadAttention: write EncoderLayer.init(": lambda: mha.EncoderLayer(
                16
            ),
            "w_q of MultiHeadAttention is 512; expected an array or Int8Weight: write MultiHeadA": lambda: (
                mha.MultiHeadAttention(512, 8)
            ),
            "w_1 of FeedForward is 16; expected an array or Int8Weight: write FeedForward.init(": lambda: mha.FeedForward(
                16, 32
            ),
            "weight of LayerNorm is 16; expected an array or None: write LayerNorm.init(": lambda: mha.LayerNorm(16),
            "cos of Rotary is 16; expected an array: write Rotary.init(": lambda: mha.Rotary(16, 8, False),
            "MultiHeadAttention() takes w_q, ...and no d_model: write Mult": lambda: mha.MultiHeadAttention(d_model=8, **HEADS),
            "and no embed_dim: write MultiHeadAttention.init(...)": lambda: mha.MultiHeadAttention(embed_dim=8, **HEADS),
            "unexpected keyword argument 'foo'": lambda: mha.Encoder(foo=1),
        }
    }
)


def test_whatever_may_be_in_a_layer_can_be_given_to_its_class():
    w = np.ones((8, 8), np.float32)
    layers = [
        mha.FeedForward(w, None, w, None),
        mha.LayerNorm(None, None),
        mha.Encoder((LAYER,), mha.Identity()),
        mha.Encoder([LAYER]),
        mha.Encoder(()),
        replace(LAYER, attention=mha.FeedForward(w, None, w, None)),  # a layer of another kind
        mha.LayerNorm(object(), object()),  # arrays that no backend knows
    ]
    for layer in layers:
        assert type(copy.copy(layer)) is type(layer)
    assert LAYER.map(lambda x: float(x.max())).norm_1.weight == 1.0  # a number for each array
    assert LAYER.map(lambda x: x.ndim > 1).attention.w_q is True
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(LAYER))(X), LAYER(X))


def test_a_subclass_may_have_a_constructor_from_sizes():
    class FromSizes(mha.Encoder):
        def __init__(self, d_model, num_layers):
            super().__init__(mha.Encoder.init(**SIZES | {"d_model": d_model}, num_layers=num_layers, seed=0).layers)

    assert len(FromSizes(8, 2).layers) == 2


def test_the_signature_of_a_class_shows_its_fields():
    assert list(inspect.signature(mha.Encoder).parameters) == ["layers", "norm"]
    assert "num_layers" in inspect.signature(mha.Encoder.init).parameters


# classes that are not dataclasses


def test_a_layer_that_is_not_a_dataclass_is_refused():
    class Annotated(mha.Layer):
        w: Any

    class Assigned(mha.Layer):
        attention = ATTENTION

    class Initialised(mha.Layer):
        def __init__(self, w):
            object.__setattr__(self, "w", w)

    @dataclass(frozen=True, eq=False)
    class Inner(Annotated):
        v: Any

    calls = {
        "Annotated": lambda: Annotated(X),
        "Assigned": Assigned,
        "Initialised": lambda: Initialised(X),
        "Annotated derives from mha.Layer": lambda: Inner(X),
    }

    def check(name):
        kind = name.partition(" ")[0]
        message = rf"^{kind} derives from mha\.Layer: write @dataclass\(frozen=True, eq=False\) above the class"
        for _ in range(2):  # not only the first time
            with pytest.raises(TypeError, match=message):
                calls[name]()

    for_each({name: name for name in calls}, check)


def test_a_class_that_adds_no_array_needs_no_decorator():
    class Doubled(mha.LayerNorm):
        factor: ClassVar[float] = 2.0

        def __call__(self, x):
            return self.factor * super().__call__(x)

    norm = Doubled.init(d_model=8)
    np.testing.assert_array_equal(norm.to("numpy")(X), 2 * mha.LayerNorm.init(d_model=8)(X))


# dropout


test_a_dropout_that_is_none_is_refused = refusals(
    {
        TypeError: {
            "dropout is a float; write dropout=mha.Dropout(0.1, seed=...)": lambda: LAYER(X, dropout=0.1),
            "dropout is a float; write dropout=mha.Dropout(0.2, seed=...)": lambda: ENCODER(X, dropout=0.2),
            "dropout is the class Dropout; write dropout=mha.Dropout(rate, seed=...)": lambda: ENCODER(X, dropout=mha.Dropout),
            "dropout is a bool; write dropout=mha.Dropout(rate, seed=...)": lambda: DECODER(X, X, dropout=True),
            "dropout is a str; write dropout=mha.Dropout(rate": lambda: DECODER.layers[0](X, X, dropout="0.1"),
            "rate is str; expected a float": lambda: mha.Dropout("0.1"),
        },
        ValueError: {"Dropout(0.5) has neither seed nor keeps, and would drop nothing; give seed=": lambda: mha.Dropout(0.5)},
    }
)


def test_a_rate_of_zero_and_choices_that_name_no_sublayer_need_no_seed():
    undropped = LAYER(X, dropout=mha.Dropout(0.0))
    np.testing.assert_allclose(undropped, LAYER(X), atol=1e-6)
    np.testing.assert_array_equal(LAYER(X, dropout=mha.Dropout(0.5, {})), undropped)


def test_layers_without_a_keep_have_no_dropout():
    keep = np.arange(X.size).reshape(X.shape) % 2 == 0
    both = mha.Encoder((LAYER, LAYER))(X, dropout=mha.Dropout(0.5, {"layers.1.feed_forward": keep}))
    np.testing.assert_array_equal(both, LAYER(LAYER(X), dropout=mha.Dropout(0.5, {"feed_forward": keep})))


# names of torch


ONE_ARRAY = "MultiHeadAttention takes x and got {} arrays: self-attention is layer(x); ... write context="

test_the_arrays_of_torch_are_refused_with_ours = refusals(
    {
        TypeError: {
            ONE_ARRAY.format(2): lambda: ATTENTION(X, X),
            ONE_ARRAY.format(3): lambda: ATTENTION(X, X, X),
            f"{ONE_ARRAY.format(4)}, and value_context=": lambda: ATTENTION.weights(X, X, X, X),
        }
    }
)


def test_the_signature_of_attention_takes_one_array():
    for call in (ATTENTION, ATTENTION.weights):
        kinds = {name: each.kind for name, each in inspect.signature(call).parameters.items()}
        assert kinds.pop("x") is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}


test_keywords_of_torch_are_refused_with_ours = refusals(
    {
        TypeError: {
            "Encoder.init() got an unexpected keyword argument 'nhead': write num_heads=": lambda: mha.Encoder.init(nhead=2),
            "EncoderLayer.init() ...'dim_feedforward': write d_ff=": lambda: mha.EncoderLayer.init(dim_feedforward=8),
            "MultiHeadAttention.init() ...'embed_dim': write d_model=": lambda: mha.MultiHeadAttention.init(embed_dim=8),
            "Decoder.init() ...'num_encoder_layers': write num_layers=": lambda: mha.Decoder.init(num_encoder_layers=2),
            "'batch_first': arrays are (..., L, d_model)": lambda: mha.Encoder.init(batch_first=True),
            "'dropout': give it to the call, as dropout=mha.Dropout(": lambda: mha.Encoder.init(dropout=0.1),
            "AdamW() got an unexpected keyword argument 'betas': write beta_1= and beta_2=": lambda: mha.AdamW(
                betas=(0.9, 0.99)
            ),
            "SGD() got an unexpected keyword argument 'lr': write learning_rate=": lambda: mha.SGD(lr=0.1),
            "unexpected keyword argument 'beta'": lambda: mha.AdamW(beta=0.9),
        }
    }
)


def test_a_users_own_init_may_take_the_names_of_torch():
    @dataclass(frozen=True, eq=False)
    class Mine(mha.Layer):
        w: Any

        @classmethod
        def init(cls, *, nhead):
            return cls(np.ones(nhead))

    @dataclass(frozen=True, eq=False)
    class Keywords(mha.Layer):
        w: Any

        @classmethod
        def init(cls, **sizes):
            return cls(np.ones(sizes["nhead"]))

    for cls in (Mine, Keywords):
        assert cls.init(nhead=3).w.shape == (3,)
    with pytest.raises(TypeError, match=r"Mine\.init\(\) got an unexpected keyword argument 'embed_dim': write d_model="):
        Mine.init(embed_dim=3)


ATTRIBUTES = {
    "cuda": 'write layer.to("torch", device="cuda")',
    "cpu": 'write layer.to("torch", device="cpu"), or layer.to("numpy")',
    "half": 'write layer.to(backend, dtype="float16")',
    "float": 'write layer.to(backend, dtype="float32")',
    "train": "a layer has no modes: it drops something only in a call with dropout=mha.Dropout(rate, seed=...)",
    "eval": "a layer has no modes",
    "parameters": "write layer.arrays()",
    "state_dict": "write layer.arrays(), which returns every array by its name; layer.save(path) writes them",
}


def test_attributes_of_torchs_modules_say_what_to_write():
    def check(name):
        with pytest.raises(AttributeError) as error:
            getattr(LAYER, name)
        assert str(error.value).startswith(f"EncoderLayer has no {name}: {ATTRIBUTES[name]}")
        assert error.value.name == name
        assert not hasattr(LAYER, name)

    for_each({name: name for name in ATTRIBUTES}, check)


def test_other_attributes_that_are_missing_have_pythons_error():
    with pytest.raises(AttributeError, match=r"^'EncoderLayer' object has no attribute 'foo'$"):
        LAYER.foo  # noqa: B018


def test_an_error_inside_of_a_property_is_not_hidden():
    class Broken(mha.LayerNorm):
        @property
        def size(self):
            return self.weight.no_such_size

    with pytest.raises(AttributeError, match="no_such_size"):
        Broken.init(d_model=8).size  # noqa: B018


def test_a_field_may_have_the_name_of_an_attribute_of_torch():
    @dataclass(frozen=True, eq=False)
    class Modes(mha.Layer):
        train: Any
        half: Any = None

    layer = Modes(X)
    assert layer.train is X
    assert layer.half is None
