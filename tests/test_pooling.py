"""Pooling as configured by sentence-transformers, and weights as stored in checkpoints, on a small random model."""

import json

import numpy as np
import pytest

from conftest import CONFIG, WORDS, mha, tiny_weights, write_tiny_model
from mha_core.bench import plain_numpy

TEXTS = ["a bird sings in the tree", "dawn", "", "the bird sings", "a b c d"]
POOL = {
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(axis=0),
    "mean": lambda hidden: hidden.mean(axis=0),
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(axis=0) / np.sqrt(len(hidden)),
    "weightedmean": lambda hidden: np.average(hidden, axis=0, weights=np.arange(1, len(hidden) + 1)),
    "lasttoken": lambda hidden: hidden[-1],
}


def expected(folder, *modes, normalize=False, gelu=plain_numpy.exact_gelu, weights=None):
    reference = plain_numpy.Bert(folder, "float64", gelu, weights)
    rows = np.stack([np.concatenate([POOL[mode](reference.hidden(text)) for mode in modes]) for text in TEXTS])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


def check(folder, expected, tolerance=1e-5, **options):
    encoder = mha.TextEncoder.from_pretrained(folder, **options)
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert encoder.dim == vectors.shape[1] == expected.shape[1]
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("key", "mode"),
    [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
    ],
)
def test_each_pooling_mode_by_its_flag(tmp_path, key, mode):
    flags = {f"pooling_mode_{name}": False for name in ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens")}
    pooling = {"word_embedding_dimension": 8, **flags, "include_prompt": True, key: True}
    folder = write_tiny_model(tmp_path / "m", pooling=pooling, modules=("Transformer", "Pooling"))
    check(folder, expected(folder, mode))


@pytest.mark.parametrize("mode", POOL)
def test_each_pooling_mode_by_its_name(tmp_path, mode):
    # the newer files of sentence-transformers: sentence_transformer/modules/pooling.py, POOLING_MODES
    folder = write_tiny_model(
        tmp_path / "m", pooling={"embedding_dimension": 8, "pooling_mode": mode}, modules=("Transformer", "Pooling")
    )
    check(folder, expected(folder, mode))


def test_flags_concatenate_in_a_fixed_order(tmp_path):
    flags = ("lasttoken", "weightedmean_tokens", "mean_tokens", "max_tokens", "cls_token")
    pooling = {f"pooling_mode_{flag}": True for flag in flags}
    folder = write_tiny_model(tmp_path / "m", pooling=pooling, modules=("Transformer", "Pooling"))
    check(folder, expected(folder, "cls", "max", "mean", "weightedmean", "lasttoken"))


def test_names_concatenate_in_the_order_given(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pooling={"pooling_mode": ["mean", "cls"]}, modules=("Transformer", "Pooling"))
    check(folder, expected(folder, "mean", "cls"))


def test_concatenated_modes_are_normalized_together(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    check(folder, expected(folder, "cls", "mean", normalize=True))


def test_vectors_of_no_texts_have_the_width_of_all_modes(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    assert mha.TextEncoder.from_pretrained(folder).encode([]).shape == (0, 16)


def test_without_modules_json_pooling_is_the_mean_without_normalizing(tiny_model):
    (tiny_model / "modules.json").unlink()
    check(tiny_model, expected(tiny_model, "mean"))


def test_the_pooling_module_is_read_where_modules_json_says(tiny_model):
    (tiny_model / "1_Pooling").rename(tiny_model / "elsewhere")
    (tiny_model / "elsewhere" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    modules = (tiny_model / "modules.json").read_text().replace("1_Pooling", "elsewhere")
    (tiny_model / "modules.json").write_text(modules)
    check(tiny_model, expected(tiny_model, "cls", normalize=True))


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_attention": True}, "attention"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_median": True}, "median"),
        ({"pooling_mode": "median"}, "median"),
        ({"pooling_mode": ["mean", "median"]}, "median"),
        ({"pooling_mode": 3}, "3"),
    ],
)
def test_other_pooling_modes_are_refused_by_name(tmp_path, pooling, mode):
    folder = write_tiny_model(tmp_path / "m", pooling=pooling)
    with pytest.raises(mha.ModelError, match=rf"1_Pooling/config.json.*{mode}.*supported: cls, max, mean, mean_sqrt_len"):
        mha.TextEncoder.from_pretrained(folder)


def test_a_pooling_config_without_a_mode_is_refused(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pooling={"word_embedding_dimension": 8})
    with pytest.raises(mha.ModelError, match=r"1_Pooling/config.json names no pooling mode; supported: cls, max, mean"):
        mha.TextEncoder.from_pretrained(folder)


def test_other_modules_are_refused_by_name(tmp_path):
    folder = write_tiny_model(tmp_path / "m", modules=("Transformer", "Pooling", "LayerNorm", "Normalize"))
    supported = "Transformer, Pooling, Dense, Normalize"
    with pytest.raises(mha.ModelError, match=rf"modules.json.*'LayerNorm'; supported: {supported}"):
        mha.TextEncoder.from_pretrained(folder)


def test_a_model_without_a_pooling_module_is_refused(tmp_path):
    folder = write_tiny_model(tmp_path / "m", modules=("Transformer",))
    with pytest.raises(mha.ModelError, match=r"modules.json has no Pooling module"):
        mha.TextEncoder.from_pretrained(folder)


def test_weights_below_the_prefix_bert_are_found(tmp_path):
    weights = tiny_weights()
    folder = write_tiny_model(tmp_path / "m", weights={f"bert.{name}": array for name, array in weights.items()})
    check(folder, expected(folder, "mean", weights=weights, normalize=True))


def test_unused_weights_are_ignored(tmp_path):
    weights = tiny_weights()
    more = {"embeddings.position_ids": np.arange(10)[None], "pooler.dense.weight": np.ones((8, 8), dtype=np.float32)}
    folder = write_tiny_model(tmp_path / "m", weights=weights | more)
    check(folder, expected(folder, "mean", weights=weights, normalize=True))


@pytest.mark.parametrize("stored", ["float16", "float64"])
def test_weights_stored_in_another_precision(tmp_path, stored):
    weights = {name: array.astype(stored) for name, array in tiny_weights().items()}
    folder = write_tiny_model(tmp_path / "m", weights=weights)
    check(folder, expected(folder, "mean", weights=weights, normalize=True))


def test_weights_stored_in_bfloat16(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    header, data, weights = {}, b"", {}
    for name, array in tiny_weights().items():
        bits = (array.view(np.uint32) >> 16).astype("<u2")  # the upper half of a float32
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [len(data), len(data) + bits.nbytes]}
        data += bits.tobytes()
        weights[name] = (bits.astype(np.uint32) << 16).view(np.float32)
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    assert abs(weights["embeddings.LayerNorm.bias"] - tiny_weights()["embeddings.LayerNorm.bias"]).max() > 1e-4
    check(folder, expected(folder, "mean", weights=weights, normalize=True))


def test_computing_in_float16_gives_float32_vectors_of_its_precision(tiny_model):
    encoder = mha.TextEncoder.from_pretrained(tiny_model, dtype="float16")
    assert {array.dtype.name for array in encoder.model.arrays().values()} == {"float16"}
    check(tiny_model, expected(tiny_model, "mean", normalize=True), 0.01, dtype="float16")


@pytest.mark.parametrize(
    ("hidden_act", "function"),
    [
        ("relu", lambda x: np.where(x > 0, x, 0)),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("swish", lambda x: x / (1 + np.exp(-x))),
        ("gelu_new", lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_other_activations_of_the_config(tmp_path, hidden_act, function):
    folder = write_tiny_model(tmp_path / "m", config=CONFIG | {"hidden_act": hidden_act})
    check(folder, expected(folder, "mean", normalize=True, gelu=function))


def test_sentence_bert_config_sets_lower_case(tiny_model):
    loud = [text.upper() for text in TEXTS]
    assert "BIRD" not in WORDS
    unknown = mha.TextEncoder.from_pretrained(tiny_model).encode(loud)
    (tiny_model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
    encoder = mha.TextEncoder.from_pretrained(tiny_model)
    np.testing.assert_array_equal(encoder.encode(loud), encoder.encode(TEXTS))
    assert abs(unknown - encoder.encode(loud)).max() > 0.1


def test_padding_and_truncation_of_the_tokenizer_file_are_ignored(tiny_model):
    plain = expected(tiny_model, "mean", normalize=True)
    path = tiny_model / "tokenizer.json"
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding": padding, "truncation": truncation}))
    check(tiny_model, plain)


@pytest.mark.parametrize(
    ("sentence_bert", "tokenizer", "limit"),
    [
        ({"max_seq_length": 5}, {"model_max_length": 7}, 5),  # sentence_bert_config.json wins
        ({"max_seq_length": 9}, {"model_max_length": 7}, 9),
        ({"max_seq_length": None}, {"model_max_length": 7}, 7),
        (None, {"model_max_length": 7}, 7),
        (None, {"model_max_length": 10**30}, 10),  # what transformers writes for "no limit"
        (None, {}, 10),
        (None, None, 10),
    ],
)
def test_max_seq_length_comes_from_the_first_file_that_has_it(tiny_model, sentence_bert, tokenizer, limit):
    (tiny_model / "sentence_bert_config.json").unlink()
    for name, contents in (("sentence_bert_config", sentence_bert), ("tokenizer_config", tokenizer)):
        if contents is not None:
            (tiny_model / f"{name}.json").write_text(json.dumps(contents))
    encoder = mha.TextEncoder.from_pretrained(tiny_model)
    assert encoder.max_seq_length == limit
    with pytest.warns(mha.TruncationWarning, match=f"longer than {limit} tokens"):
        cut = encoder.encode(["bird " * 20])
    np.testing.assert_array_equal(cut, encoder.encode(["bird " * (limit - 2)]))
