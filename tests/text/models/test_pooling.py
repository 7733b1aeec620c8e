"""Pooling as configured by sentence-transformers, and weights as stored in checkpoints, on a small random model."""

import json

import numpy as np
import pytest
from tiny_models import close, edit, editing, refused, tiny_weights, write_tiny_model

import mha_text as mt
from mha_conformance.bench import plain_numpy

TEXTS = ["a bird sings in the tree", "dawn", "", "the bird sings", "a b c d"]
POOL = {
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(axis=0),
    "mean": lambda hidden: hidden.mean(axis=0),
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(axis=0) / np.sqrt(len(hidden)),
    "weightedmean": lambda hidden: np.average(hidden, axis=0, weights=np.arange(1, len(hidden) + 1)),
    "lasttoken": lambda hidden: hidden[-1],
}


def expected(folder, *modes, normalize=False, weights=None):
    reference = plain_numpy.Bert(folder, "float64", plain_numpy.exact_gelu, weights)
    rows = np.stack([np.concatenate([POOL[mode](reference.hidden(text)) for mode in modes]) for text in TEXTS])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


def check(folder, expected, tolerance=1e-5, **options):
    encoder = mt.TextEncoder.from_pretrained(folder, **options)
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert encoder.dim == vectors.shape[1] == expected.shape[1]
    close(vectors, expected, tolerance)


FLAGS = {mode: f"pooling_mode_{mode}" if "tokens" in mode else f"pooling_mode_{mode}_tokens" for mode in POOL} | {
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        *(
            ({**dict.fromkeys([*FLAGS.values()][:4], False), "include_prompt": True, FLAGS[mode]: True}, [mode])
            for mode in POOL
        ),
        # the newer files of sentence-transformers: sentence_transformer/modules/pooling.py, POOLING_MODES
        *(({"embedding_dimension": 8, "pooling_mode": mode}, [mode]) for mode in POOL),
        ({FLAGS[mode]: True for mode in reversed(POOL)}, list(POOL)),  # flags are concatenated in a fixed order
        ({"pooling_mode": ["mean", "cls"]}, ["mean", "cls"]),  # and names in the order given
    ],
)
def test_modes_by_their_flags_or_names(tmp_path, pooling, modes):
    folder = write_tiny_model(tmp_path / "m", pooling=pooling, modules=("Transformer", "Pooling"))
    check(folder, expected(folder, *modes))


def test_concatenated_modes_are_normalized_together(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pooling={FLAGS["cls"]: True, FLAGS["mean"]: True})
    check(folder, expected(folder, "cls", "mean", normalize=True))
    assert mt.TextEncoder.from_pretrained(folder).encode([]).shape == (0, 16)


def test_without_modules_json_pooling_is_the_mean_without_normalizing(tiny_model):
    (tiny_model / "modules.json").unlink()
    check(tiny_model, expected(tiny_model, "mean"))


def test_the_pooling_module_is_read_where_modules_json_says(tiny_model):
    folder = (tiny_model / "1_Pooling").rename(tiny_model / "elsewhere")
    (folder / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with editing(tiny_model / "modules.json") as modules:
        modules[1]["path"] = "elsewhere"
    check(tiny_model, expected(tiny_model, "cls", normalize=True))


SUPPORTED = "supported: cls, max, mean, mean_sqrt_len"


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode_attention": True}, f" is 'attention'; {SUPPORTED}"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_median": True}, f" is 'median'; {SUPPORTED}"),
        ({"pooling_mode": "median"}, f" is 'median'; {SUPPORTED}"),
        ({"pooling_mode": ["mean", "median"]}, f" is 'median'; {SUPPORTED}"),
        ({"pooling_mode": 3}, f" is 3; {SUPPORTED}"),
        ({"word_embedding_dimension": 8}, f" names no pooling mode; {SUPPORTED}"),
    ],
)
def test_other_pooling_modes_are_refused_by_name(tmp_path, pooling, message):
    folder = write_tiny_model(tmp_path / "m", pooling=pooling)
    refused(folder, "1_Pooling/config.json", message)


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32", "float64"])
def test_weights_may_be_stored_in_another_precision_below_a_prefix_and_beside_others(tmp_path, stored):
    import torch
    from safetensors.torch import save_file

    weights = {name: torch.from_numpy(array).to(getattr(torch, stored)) for name, array in tiny_weights().items()}
    more = {"embeddings.position_ids": torch.arange(10)[None], "pooler.dense.weight": torch.ones(8, 8)}
    prefix = "bert." if stored == "float32" else ""
    folder = write_tiny_model(tmp_path / "m")
    save_file({f"{prefix}{name}": x for name, x in (weights | more).items()}, folder / "model.safetensors")
    exact = {name: x.double().numpy() for name, x in weights.items()}
    check(folder, expected(folder, "mean", weights=exact, normalize=True))


def test_computing_in_float16_gives_float32_vectors_of_its_precision(tiny_model):
    encoder = mt.TextEncoder.from_pretrained(tiny_model, dtype="float16")
    assert {array.dtype.name for array in encoder.model.arrays().values()} == {"float16"}
    check(tiny_model, expected(tiny_model, "mean", normalize=True), 0.01, dtype="float16")


def test_sentence_bert_config_sets_lower_case(tiny_model):
    loud = [text.upper() for text in TEXTS]
    unknown = mt.TextEncoder.from_pretrained(tiny_model).encode(loud)
    edit(tiny_model / "sentence_bert_config.json", do_lower_case=True)
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    np.testing.assert_array_equal(encoder.encode(loud), encoder.encode(TEXTS))
    assert abs(unknown - encoder.encode(loud)).max() > 0.1


def test_padding_and_truncation_of_the_tokenizer_file_are_ignored(tiny_model):
    plain = expected(tiny_model, "mean", normalize=True)
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    edit(tiny_model / "tokenizer.json", padding=padding, truncation=truncation)
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
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    assert encoder.max_seq_length == limit
    with pytest.warns(mt.TruncationWarning, match=f"longer than {limit} tokens"):
        cut = encoder.encode(["bird " * 20])
    np.testing.assert_array_equal(cut, encoder.encode(["bird " * (limit - 2)]))
