"""Layers and text encoders, exported to ONNX through the installed plugin mha-ndonnx, and run by ONNX Runtime."""

from dataclasses import replace

import needs
import numpy as np
import pytest
from project import INSTALLED
from suite import conform
from tiny_models import write_tiny_model

import mha_core as mha
import mha_text as mt
from mha_core.algebra.structure import EVERY_KEY, structure_of
from mha_core.dispatch.backend import load
from mha_core.plugin import Kernel
from mha_text.models.dense import Dense
from mha_text.models.settings import Settings

pytestmark = needs.installed("mha_ndonnx", "ndonnx", "onnxruntime")
ndx = needs.Library("ndonnx")
plugin = needs.Library("mha_ndonnx")
SIZES = [(2, 5), (1, 1), (3, 9)]
"""Sizes of batch and length."""


def session(model):
    """Return the function that runs a model: arrays by name -> the list of its outputs."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    opened = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda **arrays: opened.run(None, arrays)


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def assert_close(exported, expected, context=""):
    assert (exported.shape, exported.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(exported, expected, atol=1e-5, err_msg=str(context))


# layers


def sequences(rng, batch, length):
    return {"x": normal(rng, batch, length, 16)}


def padded_sequences(rng, batch, length):
    x, lengths = normal(rng, batch, length, 16), rng.integers(0, length + 1, size=batch)
    x[np.arange(length) >= lengths[:, None]] = np.nan
    return {"x": x, "lengths": lengths}


def two_sequences(rng, batch, length):
    return sequences(rng, batch, length) | {"context": normal(rng, batch, length + 2, 16)}


def two_sequences_and_a_mask(rng, batch, length):
    keep = rng.random(size=(batch, 1, length, length + 2)) < 0.5
    return two_sequences(rng, batch, length) | {"keep": keep}


SMALL = {"d_model": 16, "num_heads": 4, "seed": 0}
LAYER = mha.EncoderLayer.init(**SMALL, d_ff=32, activation="gelu")
LAYERS = {
    "no mask": (LAYER, lambda layer, x: layer(x), sequences),
    "causal": (LAYER, lambda layer, x: layer(x, mask=mha.causal()), sequences),
    "window and alibi": (LAYER, lambda layer, x: layer(x, mask=mha.window(2, 1), bias=mha.alibi(4)), sequences),
    "a padded batch": (
        mha.Encoder.init(**SMALL, d_ff=16, num_layers=2, norm_first=True),
        lambda encoder, x, lengths: encoder(x, mask=mha.key_lengths(lengths)),
        padded_sequences,
    ),
    "shared keys": (
        mha.MultiHeadAttention.init(**SMALL, num_kv_heads=2),
        lambda layer, x, context, keep: layer(x, context=context, mask=keep, softcap=2.0),
        two_sequences_and_a_mask,
    ),
    "decoder": (
        mha.Decoder.init(**SMALL, d_ff=16, num_layers=1),
        lambda decoder, x, context: decoder(x, context),
        two_sequences,
    ),
}
"""A layer, a call of it, and a function that draws the other arguments for a batch and a length."""
OF_NUMBERS = [pytest.param(name, False, marks=[] if LAYERS[name][0] is LAYER else pytest.mark.full) for name in LAYERS]
"""Every layer of an encoder is exported both ways by the tests of masks; other layers with lengths as numbers in full only."""


@pytest.mark.parametrize(("name", "symbolic"), [*OF_NUMBERS, *((name, True) for name in LAYERS)])
def test_a_layer_with_lengths_as_numbers_or_as_names(rng, name, symbolic):
    layer, call, inputs = LAYERS[name]
    there, sizes = layer.to("ndonnx"), SIZES if symbolic else SIZES[:1]
    given = [inputs(rng, *size) for size in sizes]

    def kind(x, y):
        return str(x.dtype), tuple(m if m == n else f"from {m} to {n}" for m, n in zip(x.shape, y.shape, strict=True))

    kinds = {name: kind(x, given[-1][name]) for name, x in given[0].items()}
    exported = session(plugin.export(lambda *arrays: call(there, *arrays), kinds))
    for arrays in given:
        expected = call(layer, *arrays.values())
        assert_close(*exported(**arrays), expected)
        if "lengths" in arrays:  # padding is NaN
            assert not np.isnan(expected[~np.isnan(arrays["x"][..., 0])]).any()


# attention


TABLE, SINK = np.random.default_rng(0).normal(size=(8, 4)), np.asarray([0.5, -np.inf, 2.0, -1.0])
OPTIONS = {
    "plain": lambda make: {},
    "a causal row that sees nothing": lambda make: {"mask": mha.causal(), "query_offset": -1},
    "sink and prefix": lambda make: {"sink": make(SINK.astype(np.float32)), "mask": mha.prefix(2), "softcap": 3.0},
    "relative bias": lambda make: {
        "bias": mha.relative_bias(make(TABLE.astype(np.float32)), bidirectional=True, max_distance=5),
        "mask": ~mha.chunks(2) | mha.causal(),
        "query_offset": 1,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_attention_of_lengths_that_are_known_when_the_model_runs(rng, options):
    """With fewer and more keys than queries, without keys or queries, and with an empty batch."""

    def attend(*arrays, make):
        return mha.attention_state(*arrays, **options(make))._asdict()

    shapes = {"query": ("b", 4, "l", 8), "key": ("b", 2, "s", 8), "value": ("b", 2, "s", 6)}
    kinds = {name: ("float32", shape) for name, shape in shapes.items()}
    exported = session(plugin.export(lambda *arrays: attend(*arrays, make=ndx.asarray), kinds))
    for numbers in [(2, 3, 5), (1, 1, 1), (2, 7, 2), (0, 3, 5), (2, 0, 3), (2, 3, 0)]:
        sizes = dict(zip("bls", numbers, strict=True))
        arrays = {name: normal(rng, *(sizes.get(size, size) for size in shape)) for name, shape in shapes.items()}
        expected = attend(*arrays.values(), make=np.asarray)
        for got, (name, right) in zip(exported(**arrays), expected.items(), strict=True):
            assert_close(got, right, f"{name} of {sizes}")


@pytest.mark.parametrize("names", [("length", 4), (3, "length")], ids=["queries", "keys"])
def test_one_of_the_lengths_may_be_a_number(rng, names):
    def attend(*arrays):
        return mha.scaled_dot_product_attention(*arrays, mask=mha.causal() | ~mha.prefix(2), query_offset=1)

    kinds = {name: ("float32", (2, size, 8)) for name, size in zip("qkv", (*names, names[1]), strict=True)}
    exported = session(plugin.export(attend, kinds))
    for length in (1, 6):
        queries, keys = (length if size == "length" else size for size in names)
        q, k, v = (normal(rng, 2, size, 8) for size in (queries, keys, keys))
        assert_close(exported(q=q, k=k, v=v)[0], attend(q, k, v))


def test_the_lse_has_the_batch_of_the_values(rng):
    def attend(*arrays):
        return mha.attention_state(*arrays)._asdict()

    shapes = {"query": ("length", 8), "key": ("length", 8), "value": ("batch", 1, "length", 6)}
    exported = session(plugin.export(attend, {name: ("float32", shape) for name, shape in shapes.items()}))
    arrays = {"query": normal(rng, 3, 8), "key": normal(rng, 3, 8), "value": normal(rng, 2, 1, 3, 6)}
    for got, expected in zip(exported(**arrays), attend(*arrays.values()).values(), strict=True):
        assert_close(got, expected)


def test_the_algebra_is_recorded_in_blocks_too(rng):
    shape = ("float32", (2, 7, 8))
    with mha.use_kernel("attention", "algebra"):
        model = plugin.export(
            lambda *arrays: mha.scaled_dot_product_attention(*arrays, mask=mha.causal()), dict.fromkeys("qkv", shape)
        )
    q, k, v = (normal(rng, 2, 7, 8) for _ in range(3))
    assert_close(session(model)(q=q, k=k, v=v)[0], mha.scaled_dot_product_attention(q, k, v, mask=mha.causal()))
    (why,) = mha.explain("attention", *[unknown(2, 1500, 8)] * 3).rejected  # lengths that are numbers, and too many scores
    assert why.reason == "computes all scores together, and these are more than 4194304"


def unknown(*shape):
    return ndx.argument(shape=shape, dtype=ndx.float32)


def test_what_needs_lengths_says_so():
    x, known = unknown("b", 4, "l", 8), "the number of queries and keys"
    with mha.use_kernel("attention", "algebra"), pytest.raises(ValueError, match=f"attention in blocks needs {known}"):
        mha.scaled_dot_product_attention(x, x, x)
    with pytest.raises(ValueError, match=f"attention_weights needs {known}.* query \\(None, 4, None, 8\\)"):
        mha.attention_weights(x, x)
    with pytest.raises(ValueError, match="rotary needs the number of positions"):
        mha.Rotary.init(max_length=9, dim=8, interleaved=False, backend="ndonnx")(x)
    with pytest.raises(ValueError, match="bias depends on the position of the query, and the number of"):  # promise 5
        mha.scaled_dot_product_attention(x, x, x, bias=mha.alibi(4))
    with pytest.raises(ValueError, match="lengths add up to 3, but there are None"):
        mha.scaled_dot_product_attention(x, x, x, mask=mha.packed([1, 2]))


def test_sizes_are_never_mistaken_for_each_other():
    space = load("ndonnx").xp
    x = unknown("b", "l", 8)
    assert space.reshape(x, (None, None, 2, 4)).shape == (None, None, 2, 4)
    for shape in [(2, None, 8), (None, 8, None), (2, None, None, 4)]:
        with pytest.raises(ValueError, match="cannot tell which sizes are None"):
            space.reshape(x, shape)


def test_a_kernel_that_does_not_know_such_sizes_is_given_none(installed):
    x = unknown("b", 4, "l", 8)
    installed(Kernel("ndonnx", "attention", "eager", 1, "math:fsum", handles=frozenset({"traced"}), priority=9))
    (reason,) = (each.reason for each in mha.explain("attention", *[x] * 3).rejected if each.kernel == "eager")
    assert reason == "does not handle unknown_sizes"


def test_a_mask_over_lengths_not_known_stays_whole():
    mask = mha.causal() & mha.prefix(3)
    for num_queries, num_keys in [(None, 4), (4, None), (None, None)]:
        structure = structure_of(np, mask, num_queries=num_queries, num_keys=num_keys, offset=0)
        assert structure.rest is mask and structure.keys is EVERY_KEY and structure.features == {"mask"}
        assert structure.keeps_all(4) and structure.keeps_all(None)


# text encoders

TEXTS = ["the bird sings in the tree", "a bird", "", "tree"]


def padded(encoder, texts):
    """Return what other tokenizers return: ids with padding behind them, and a mask."""
    every, _ = encoder.tokenizer(texts)
    shape = len(every), max(map(len, every))
    ids, mask = np.full(shape, encoder.model.padding or 0), np.zeros(shape, dtype=np.int64)
    for row, tokens in enumerate(every):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask}


def assert_encodes(encoder, texts, **settings):
    exported = session(plugin.export_text_encoder(encoder, **settings))
    named = not any(isinstance(size, int) for size in settings.values() if not isinstance(size, bool))
    for batch in (texts, texts[1:3]) if named else (texts,):
        (vectors,) = exported(**padded(encoder, batch))
        np.testing.assert_allclose(vectors, encoder.encode(batch, normalize=settings.get("normalize")), atol=1e-5)


@pytest.mark.parametrize("sizes", [{}, {"batch": 4, "length": 8}], ids=["sizes as names", "sizes as numbers"])
def test_a_text_encoder(tiny_model, sizes):
    assert_encodes(mt.TextEncoder.from_pretrained(tiny_model), TEXTS, **sizes)


def test_every_pooling(tmp_path):
    modes = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    folder = write_tiny_model(tmp_path / "model", pooling={f"pooling_mode_{mode}": True for mode in modes})
    assert_encodes(mt.TextEncoder.from_pretrained(folder), TEXTS, normalize=False)


@pytest.mark.parametrize("normalize", [None, *(pytest.param(x, marks=pytest.mark.full) for x in (True, False))])
def test_dense_modules_and_cut_vectors(tiny_model, normalize, rng):
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    layers = (Dense(rng.normal(size=(8, 6)).astype(np.float32), None, "tanh"), Dense(np.eye(6, dtype=np.float32), None, "gelu"))
    assert_encodes(replace(encoder, dense=layers, settings=Settings(truncate_dim=5)), TEXTS, normalize=normalize)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "mpnet" else pytest.mark.full)
        for kind in ("bert", "electra", "distilbert", "mpnet", "roberta", "xlm-roberta", "camembert")
    ],
)
def test_every_family(tmp_path, kind):
    from small_models import write_model

    assert_encodes(mt.TextEncoder.from_pretrained(write_model(tmp_path / kind, kind)), TEXTS)


@pytest.mark.full
def test_the_real_minilm(minilm, sentences):
    assert_encodes(mt.TextEncoder.from_pretrained(minilm), sentences[:16])


# the distribution


def test_arrays_that_hold_numbers_are_computed_at_once(rng):
    backend = load("ndonnx")
    arrays = [normal(rng, 2, 3, 4, 5) for _ in range(3)]
    got = mha.attention_state(*map(backend.from_numpy, arrays), mask=mha.causal())
    for here, there in zip(mha.attention_state(*arrays, mask=mha.causal()), got, strict=True):
        assert_close(backend.to_numpy(there), here)
    with pytest.raises(ValueError, match="value"):
        backend.to_numpy(unknown("b", 2))


@pytest.mark.full
def test_arrays_that_hold_numbers_conform(tmp_path):
    done = conform("ndonnx", "--quick", "-k", "test_pieces", cwd=tmp_path, path=[INSTALLED], status=0)
    assert " passed" in done.stdout
