"""Errors for model directories: each names the file, what was found and what was expected."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import CONFIG, mha, tiny_weights, write_tiny_model

QUERY = "encoder.layer.0.attention.self.query.weight"


def refused(folder, *parts, error=mha.ModelError):
    """Assert that the model is refused with one line that contains ``parts``, and return it."""
    with pytest.raises(error) as caught:
        mha.TextEncoder.from_pretrained(folder)
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert "\n" not in message
    return message


def rewrite(path, **changes):
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


def test_the_model_that_these_tests_break_is_accepted(tiny_model):
    assert mha.TextEncoder.from_pretrained(tiny_model).encode(["a bird"]).shape == (1, 8)
    assert mha.TextEncoder.from_pretrained(str(tiny_model)).dim == 8


# the directory


@pytest.mark.parametrize("name", ["nowhere/at/all", "../nowhere", ".nowhere", "a name with spaces", "~/nowhere/at/all"])
def test_a_missing_directory(name):
    for asked in (name, Path(name), Path(name).expanduser().absolute()):
        message = refused(asked, "no directory ", error=mha.ModelNotFound)
        assert str(asked) in message or str(Path(asked).expanduser()) in message


def test_an_empty_name():
    refused("", "''", error=mha.ModelNotFound)  # not the current directory


def test_an_empty_directory(tmp_path):
    refused(tmp_path, f"{tmp_path / 'config.json'} is missing", "the directory is empty")


def test_a_file_instead_of_a_directory(tiny_model):
    path = tiny_model / "model.safetensors"
    refused(path, f"{path} is a file", "expected the directory of a model")


def test_other_types_than_paths_are_a_type_error():
    for wrong in (None, 3):
        with pytest.raises(TypeError, match="path_or_repo"):
            mha.TextEncoder.from_pretrained(wrong)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file(tiny_model, name):
    (tiny_model / name).unlink()
    there = {"config.json", "model.safetensors", "tokenizer.json"} - {name}
    refused(tiny_model, f"{tiny_model / name} is missing: the directory holds 1_Pooling, ", *there)


def test_a_missing_pooling_config(tiny_model):
    path = tiny_model / "1_Pooling" / "config.json"
    path.unlink()
    refused(tiny_model, f"{path} is missing: the directory is empty")
    path.parent.rmdir()
    refused(tiny_model, f"{path} is missing: there is no directory {path.parent}")


def test_a_large_directory_is_listed_in_part(tiny_model):
    for at in range(50):
        (tiny_model / f"a{at:02}").touch()
    (tiny_model / "config.json").unlink()
    message = refused(tiny_model, "config.json is missing", "…")
    assert len(message) < 400


# the JSON files

JSON_FILES = ["config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json", "sentence_bert_config.json"]


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("content", [b"", b'{"model_type": "be', b"\xff\xfe{}", b"not json"])
def test_invalid_json(tiny_model, name, content):
    (tiny_model / name).write_bytes(content)
    refused(tiny_model, f"{tiny_model / name} is not valid JSON: ")


@pytest.mark.parametrize("name", JSON_FILES)
def test_json_of_another_type(tiny_model, name):
    found, expected = ("dict", "list") if name == "modules.json" else ("list", "dict")
    (tiny_model / name).write_text("{}" if found == "dict" else "[]")
    refused(tiny_model, f"{tiny_model / name} holds a {found}; expected a {expected}")


def test_a_directory_where_a_file_should_be(tiny_model):
    for name in ("model.safetensors", "config.json"):
        (tiny_model / name).unlink()
        (tiny_model / name).mkdir()
        refused(tiny_model, str(tiny_model / name), error=mha.ModelError)


@pytest.mark.parametrize(
    ("content", "found"),
    [([3], "''"), ([{"type": 3}], "'3'"), ([{"path": ""}], "''"), ([{"type": "custom.Normaliser"}], "'Normaliser'")],
)
def test_modules_without_a_known_type(tiny_model, content, found):
    (tiny_model / "modules.json").write_text(json.dumps(content))
    refused(tiny_model, f"modules.json: module type is {found}; supported: Transformer, Pooling, Dense, Normalize")


@pytest.mark.parametrize("model_type", ["t5", "BERT", "", "albert", "deberta-v2", "gemma2"])
def test_other_model_types_are_refused_by_name(tiny_model, model_type):
    rewrite(tiny_model / "config.json", model_type=model_type)
    supported = (
        "bert, roberta, xlm-roberta, camembert, mpnet, distilbert, electra, modernbert, nomic_bert, gte, new, "
        "jina_embeddings_v3, eurobert, qwen3, gemma3_text"
    )
    message = refused(tiny_model, f"{tiny_model / 'config.json'}: model_type is {model_type!r}; supported: ")
    assert message.endswith(f"supported: {supported}")


@pytest.mark.parametrize(
    "name",
    [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_a_missing_field(tiny_model, name):
    config = {key: value for key, value in CONFIG.items() if key != name}
    (tiny_model / "config.json").write_text(json.dumps(config))
    refused(tiny_model, f"{tiny_model / 'config.json'} has no '{name}'")


SIZES = ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "type_vocab_size"]


@pytest.mark.parametrize("value", ["8", None, True])
@pytest.mark.parametrize("name", [*SIZES, "max_position_embeddings"])
def test_fields_of_another_type(tiny_model, name, value):
    rewrite(tiny_model / "config.json", **{name: value})
    refused(tiny_model, f"{tiny_model / 'config.json'}: {name} is {value!r}; expected int")


@pytest.mark.parametrize("name", [*SIZES, "max_position_embeddings"])
def test_negative_sizes(tiny_model, name):
    rewrite(tiny_model / "config.json", **{name: -1})
    refused(tiny_model, str(tiny_model / "config.json"), f"{name} ", "-1")


@pytest.mark.parametrize("value", ["small", None, []])
def test_an_epsilon_that_is_not_a_number(tiny_model, value):
    rewrite(tiny_model / "config.json", layer_norm_eps=value)
    refused(tiny_model, f"{tiny_model / 'config.json'}: layer_norm_eps is {value!r}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-12])
def test_an_epsilon_that_no_norm_can_use(tiny_model, value):
    rewrite(tiny_model / "config.json", layer_norm_eps=value)
    refused(tiny_model, f"{tiny_model / 'config.json'}: layer_norm_eps is {value}; expected at least 0, and finite")


@pytest.mark.parametrize("value", ["mish", 3, None, ["gelu"]])
def test_unsupported_activation(tiny_model, value):
    rewrite(tiny_model / "config.json", hidden_act=value)
    refused(tiny_model, f"{tiny_model / 'config.json'}: hidden_act is {value!r}; supported: gelu, gelu_new, ", "relu", "silu")


def test_unsupported_positions(tiny_model):
    rewrite(tiny_model / "config.json", position_embedding_type="relative_key_query")
    refused(tiny_model, "config.json: position_embedding_type is 'relative_key_query'; supported: absolute")


def test_heads_that_do_not_divide_the_width(tiny_model):
    rewrite(tiny_model / "config.json", num_attention_heads=3)
    refused(tiny_model, "config.json: hidden_size is 8; expected a multiple of num_attention_heads = 3")


# the weights


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights(tiny_model, keep):
    path = tiny_model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(tiny_model, f"{path} is truncated or corrupt: ")


def test_corrupt_weights(tiny_model, rng):
    path = tiny_model / "model.safetensors"
    good = path.read_bytes()
    for content in (rng.bytes(len(good)), b"<html>not found</html>", good[:8] + b"x" * 100 + good[108:], good + b"x"):
        path.write_bytes(content)
        refused(tiny_model, f"{path} is truncated or corrupt: ")


def test_a_missing_weight_is_named(tmp_path):
    weights = tiny_weights()
    del weights[QUERY]
    folder = write_tiny_model(tmp_path / "m", weights=weights)
    message = refused(folder, str(folder / "model.safetensors"), f"{QUERY} is missing (expected shape (8, 8))")
    assert message.count("is missing") == 1


def test_a_weight_of_another_shape_is_named_with_both(tmp_path):
    weights = tiny_weights() | {"encoder.layer.1.intermediate.dense.weight": np.ones((8, 16), dtype=np.float32)}
    folder = write_tiny_model(tmp_path / "m", weights=weights)
    refused(folder, "encoder.layer.1.intermediate.dense.weight has shape (8, 16), expected (16, 8)")


def test_up_to_eight_wrong_weights_are_listed_at_once(tmp_path):
    weights = tiny_weights() | {"embeddings.LayerNorm.bias": np.ones(3, dtype=np.float32)}
    wrong = [name for name in weights if "query" in name or "key" in name]
    folder = write_tiny_model(tmp_path / "m", weights={name: array for name, array in weights.items() if name not in wrong})
    message = refused(folder, "embeddings.LayerNorm.bias has shape (3,), expected (8,)", f"{QUERY} is missing")
    assert len(wrong) + 1 == 9
    assert message.count("; ") == 8
    assert message.endswith("; and 1 more")


def test_a_config_of_another_model_is_refused_with_the_shapes(tiny_model):
    rewrite(tiny_model / "config.json", hidden_size=4)
    refused(tiny_model, "does not fit its config.json", "embeddings.word_embeddings.weight has shape (12, 8), expected (12, 4)")


def test_sizes_larger_than_the_weights_allocate_no_memory(tiny_model):
    rewrite(tiny_model / "config.json", vocab_size=10**13)
    refused(tiny_model, "embeddings.word_embeddings.weight has shape (12, 8), expected (10000000000000, 8)")


@pytest.mark.parametrize("count", [1, 3, 100_000_000])
def test_a_number_of_layers_that_the_weights_do_not_have_is_refused_before_any_is_built(tiny_model, count):
    rewrite(tiny_model / "config.json", num_hidden_layers=count)
    path = tiny_model / "model.safetensors"
    refused(tiny_model, f"{path} does not fit its config.json: it has 2 layers, but num_hidden_layers is {count}")


def test_a_missing_weight_does_not_hide_the_prefix(tmp_path):
    weights = {f"bert.{name}": array for name, array in tiny_weights().items()}
    del weights["bert.embeddings.word_embeddings.weight"]
    message = refused(write_tiny_model(tmp_path / "m", weights=weights), "bert.embeddings.word_embeddings.weight is missing")
    assert message.count("is missing") == 1


@pytest.mark.parametrize(("kind", "name"), [("int32", "I32"), ("bool", "BOOL"), ("uint8", "U8")])
def test_weights_that_are_not_floats_are_refused(tmp_path, kind, name):
    weights = tiny_weights()
    weights[QUERY] = weights[QUERY].astype(kind)
    folder = write_tiny_model(tmp_path / "m", weights=weights)
    refused(folder, f"{folder / 'model.safetensors'}: {QUERY} is stored as {name}; supported: F64, F32, F16, BF16")


# the tokenizer


def test_a_tokenizer_file_without_a_tokenizer(tiny_model):
    path = tiny_model / "tokenizer.json"
    for content in ({}, {"model": {"type": "Nonsense"}}):
        path.write_text(json.dumps(content))
        refused(tiny_model, f"{path} cannot be read by tokenizers: ")


def test_more_tokens_than_vectors(tmp_path):
    weights = tiny_weights()
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"][:8]
    folder = write_tiny_model(tmp_path / "m", config=CONFIG | {"vocab_size": 8}, weights=weights)
    refused(folder, f"{folder / 'tokenizer.json'} has ", "11", "the model has vectors for 8")


def test_a_token_id_beyond_the_vectors(tiny_model):
    path = tiny_model / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"]["vocab"]["dawn"] = 99  # as many tokens as vectors, but one id beyond them
    path.write_text(json.dumps(contents))
    refused(tiny_model, str(path), "99", "the model has vectors for 12")


def test_a_special_token_beyond_the_vectors(tiny_model):
    path = tiny_model / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [70]
    path.write_text(json.dumps(contents))
    refused(tiny_model, f"{path} has token ids up to 70, but the model has vectors for 12 tokens")


def test_an_empty_vocabulary(tiny_model):
    path = tiny_model / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"]["vocab"], contents["added_tokens"], contents["post_processor"] = {}, [], None
    path.write_text(json.dumps(contents))
    refused(tiny_model, f"{path} has no tokens")


def test_a_word_outside_of_a_vocabulary_that_has_no_token_for_it(tiny_model):
    path = tiny_model / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"]["unk_token"] = "[NONE]"
    path.write_text(json.dumps(contents))
    with pytest.raises(
        mha.ModelError, match=r"tokenizer\.json cannot be used by tokenizers: WordLevel error: Missing"
    ) as caught:
        mha.TextEncoder.from_pretrained(tiny_model).encode(["zebra"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "modules.json"])
def test_json_nested_too_deeply(tiny_model, name):
    (tiny_model / name).write_text("[" * 100_000 + "]" * 100_000)
    refused(tiny_model, f"{tiny_model / name} is not valid JSON: ")


@pytest.mark.parametrize("value", [11, 0, -1, "8", 2.5])
def test_a_limit_that_the_positions_do_not_allow(tiny_model, value):
    rewrite(tiny_model / "sentence_bert_config.json", max_seq_length=value)
    refused(tiny_model, f"{tiny_model / 'sentence_bert_config.json'}: max_seq_length is {value!r}; expected ", " to 10")


@pytest.mark.parametrize("value", [-1, "8"])
def test_a_bad_limit_of_the_tokenizer_config_is_reported_with_that_file(tiny_model, value):
    (tiny_model / "sentence_bert_config.json").unlink()
    rewrite(tiny_model / "tokenizer_config.json", model_max_length=value)
    refused(tiny_model, f"{tiny_model / 'tokenizer_config.json'}: model_max_length is {value!r}")


def test_a_limit_without_room_for_the_special_tokens(tiny_model):
    rewrite(tiny_model / "sentence_bert_config.json", max_seq_length=1)  # the tokenizers library would then cut nothing
    refused(tiny_model, f"{tiny_model / 'sentence_bert_config.json'}: max_seq_length is 1; expected 2 to 10")


def test_model_errors_are_value_errors_and_mha_errors(tiny_model):
    shutil.rmtree(tiny_model / "1_Pooling")
    for kind in (ValueError, mha.MhaError):
        refused(tiny_model, error=kind)
