"""Errors for model directories: each names the file, what was found and what was expected."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIG, close, edit, editing, refused, tiny_weights, write_tiny_model

import mha_core as mha
import mha_text as mt
from mha_text.models.families import MODEL_TYPES

QUERY = "encoder.layer.0.attention.self.query.weight"


# the directory


@pytest.mark.parametrize("name", ["nowhere/at/all", "../nowhere", ".nowhere", "a name with spaces", "~/nowhere/at/all"])
def test_a_missing_directory(name):
    for asked in (name, Path(name), Path(name).expanduser().absolute()):
        message = refused(asked, "no directory ", error=mt.ModelNotFound)
        assert str(asked) in message or str(Path(asked).expanduser()) in message


def test_what_is_no_directory_of_a_model(tiny_model, tmp_path):
    refused("", "''", error=mt.ModelNotFound)  # not the current directory
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", f"{tmp_path / 'empty' / 'config.json'} is missing", "the directory is empty")
    path = tiny_model / "model.safetensors"
    refused(path, f"{path} is a file", "expected the directory of a model")
    for wrong in (None, 3):
        refused(wrong, "path_or_repo", error=TypeError)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
def test_a_missing_file(tiny_model, name):
    path = tiny_model / name
    path.unlink()
    names = ", ".join(sorted(each.name for each in path.parent.iterdir()))
    refused(tiny_model, f"{path} is missing: the directory {f'holds {names}' if names else 'is empty'}")
    for at in range(50):
        (path.parent / f"a{at:02}").touch()
    assert len(refused(tiny_model, f"{path} is missing: the directory holds ", "…")) < 400
    if not names:
        shutil.rmtree(path.parent)
        refused(tiny_model, f"{path} is missing: there is no directory {path.parent}")


# the JSON files

JSON_FILES = ["config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json", "sentence_bert_config.json"]


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("content", [b"", b'{"model_type": "be', b"\xff\xfe{}", b"not json", b"[" * 100_000 + b"]" * 100_000])
def test_invalid_json(tiny_model, name, content):
    (tiny_model / name).write_bytes(content)
    refused(tiny_model, f"{tiny_model / name} is not valid JSON: ")


@pytest.mark.parametrize("name", JSON_FILES)
def test_json_of_another_type(tiny_model, name):
    kinds = ("dict", "list") if name == "modules.json" else ("list", "dict")
    (tiny_model / name).write_text("{}" if kinds[0] == "dict" else "[]")
    refused(tiny_model, "{} holds a {}; expected a {}".format(tiny_model / name, *kinds))


def test_a_directory_where_a_file_should_be(tiny_model):
    for name in ("model.safetensors", "config.json"):
        (tiny_model / name).unlink()
        (tiny_model / name).mkdir()
        refused(tiny_model, str(tiny_model / name), error=mt.ModelError)


KINDS = "supported: Transformer, Pooling, Dense, Normalize"


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([3], f": module type is ''; {KINDS}"),
        ([{"type": 3}], f": module type is '3'; {KINDS}"),
        ([{"path": ""}], f": module type is ''; {KINDS}"),
        ([{"type": "custom.Normaliser"}], f": module type is 'Normaliser'; {KINDS}"),
        ([{"type": "models.Transformer"}], " has no Pooling module"),
    ],
)
def test_modules_that_cannot_be_used(tiny_model, modules, message):
    (tiny_model / "modules.json").write_text(json.dumps(modules))
    refused(tiny_model, f"modules.json{message}")


@pytest.mark.parametrize("model_type", ["t5", "BERT", "", "albert", "deberta-v2", "gemma2"])
def test_other_model_types_are_refused_by_name(tiny_model, model_type):
    edit(tiny_model / "config.json", model_type=model_type)
    end = f"; supported: {', '.join(MODEL_TYPES)}"
    assert refused(tiny_model, f"{tiny_model / 'config.json'}: model_type is {model_type!r}").endswith(end)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json"])
def test_a_pipe_or_a_device_is_no_file_of_a_model(tiny_model, name):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (tiny_model / name).unlink()
        make(tiny_model / name)
        refused(tiny_model, f"{tiny_model / name} is a pipe or a device; expected a file")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vocab_size", 10**30, "is 1000000000000000000000000000000; expected at most 2^63"),
        ("vocab_size", 10**400, f"is 1{'0' * 39}...; expected at most 2^63"),
        ("layer_norm_eps", 10**400, f"is 1{'0' * 39}...; expected at least 0, and finite"),
    ],
)
def test_a_number_that_no_processor_knows(tiny_model, name, value, message):
    edit(tiny_model / "config.json", **{name: value})
    refused(tiny_model, f"{tiny_model / 'config.json'}: {name} {message}")


SIZES = [name for name in CONFIG if name.endswith("_size") or name.startswith(("num_", "max_"))]


@pytest.mark.parametrize("name", ["model_type", *sorted({*SIZES} - {"type_vocab_size"})])
def test_a_missing_field(tiny_model, name):
    edit(tiny_model / "config.json", without=[name])
    refused(tiny_model, f"{tiny_model / 'config.json'} has no '{name}'")


WRONG_FIELDS = [
    *(({name: value}, "expected int") for name in SIZES for value in ("8", None, True)),
    *(({name: -1}, "expected at least 1") for name in SIZES),
    *(({"layer_norm_eps": value}, "expected float") for value in ("small", None, [])),
    *(({"layer_norm_eps": value}, "expected at least 0, and finite") for value in (float("nan"), float("inf"), -1e-12)),
    *(({"hidden_act": value}, "supported: gelu, gelu_new, gelu_pytorch_tanh") for value in ("mish", 3, None, ["gelu"])),
    *(({"position_embedding_type": value}, "supported: absolute") for value in ("relative_key_query", "alibi")),
    ({"num_attention_heads": 3}, "hidden_size is 8; expected a multiple of num_attention_heads = 3"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_FIELDS)
def test_a_field_that_cannot_be_used(tiny_model, changes, message):
    edit(tiny_model / "config.json", **changes)
    ((name, value),) = changes.items()
    start = "" if message.startswith("hidden_size") else f"{name} is {value!r}; "
    refused(tiny_model, f"{tiny_model / 'config.json'}: {start}{message}")


# the weights


def test_truncated_or_corrupt_weights(tiny_model, rng):
    path = tiny_model / "model.safetensors"
    good = path.read_bytes()
    wrong = [b"", good[:5], good[:100], good[:-1], rng.bytes(len(good)), b"<html>not found</html>", good + b"x"]
    for content in (*wrong, good[:8] + b"x" * 100 + good[108:]):
        path.write_bytes(content)
        refused(tiny_model, f"{path} is truncated or corrupt: ")


def test_up_to_eight_wrong_weights_are_named_at_once(tmp_path):
    weights = tiny_weights() | {"encoder.layer.1.intermediate.dense.weight": np.ones((8, 16), dtype=np.float32)}
    del weights[QUERY]
    folder = write_tiny_model(tmp_path / "m", weights=weights)
    message = refused(folder, str(folder / "model.safetensors"), f"{QUERY} is missing (expected shape (8, 8)); ")
    assert message.endswith("; encoder.layer.1.intermediate.dense.weight has shape (8, 16), expected (16, 8)")
    assert message.count("; ") == 1
    wrong = [name for name in weights if "query" in name or "key" in name or "value" in name]
    folder = write_tiny_model(tmp_path / "n", weights={name: x for name, x in weights.items() if name not in wrong})
    message = refused(folder, f"{QUERY} is missing")
    assert message.count("; ") == 8 and message.endswith(f"; and {len(wrong) + 2 - 8} more")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 4, "embeddings.word_embeddings.weight has shape (12, 8), expected (12, 4)"),
        ("vocab_size", 10**13, "embeddings.word_embeddings.weight has shape (12, 8), expected (10000000000000, 8)"),
        *(("num_hidden_layers", n, f"it has 2 layers, but num_hidden_layers is {n}") for n in (1, 3, 100_000_000)),
    ],
)
def test_other_sizes_than_those_of_the_weights_are_refused(tiny_model, field, value, message):
    """No memory is allocated for them."""
    edit(tiny_model / "config.json", **{field: value})
    refused(tiny_model, f"{tiny_model / 'model.safetensors'} does not fit its config.json: ", message)


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


def rename(contents):
    contents["model"]["vocab"]["dawn"] = 99  # as many tokens as vectors, but one id beyond them


def move(contents):
    contents["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [70]


def empty(contents):
    contents["model"]["vocab"], contents["added_tokens"], contents["post_processor"] = {}, [], None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict.clear, " cannot be read by tokenizers: "),
        (lambda contents: contents.update(model={"type": "Nonsense"}), " cannot be read by tokenizers: "),
        (rename, " has token ids up to 99, but the model has vectors for 12 tokens"),
        (move, " has token ids up to 70, but the model has vectors for 12 tokens"),
        (empty, " has no tokens"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(tiny_model, change, message):
    with editing(tiny_model / "tokenizer.json") as contents:
        change(contents)
    refused(tiny_model, f"{tiny_model / 'tokenizer.json'}{message}")


def test_padding_and_truncation_of_tokenizer_json_are_ignored(tiny_model):
    expected = mt.TextEncoder.from_pretrained(tiny_model).encode(["a bird"])
    with editing(tiny_model / "tokenizer.json") as contents:
        side = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
        contents["padding"] = {"strategy": {"Fixed": 10**9}, **side}
        contents["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    close(mt.TextEncoder.from_pretrained(tiny_model).encode(["a bird"]), expected, 0)


def test_a_word_outside_of_a_vocabulary_that_has_no_token_for_it(tiny_model):
    with editing(tiny_model / "tokenizer.json") as contents:
        contents["model"]["unk_token"] = "[NONE]"
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    with pytest.raises(mt.ModelError, match=r"tokenizer\.json cannot be used by tokenizers: WordLevel error: Missing.*\Z"):
        encoder.encode(["zebra"])


@pytest.mark.parametrize(
    ("name", "field", "values", "end"),
    [
        ("sentence_bert_config.json", "max_seq_length", (11, 1, 0, -1, "8", 2.5), "; expected 2 to 10"),  # 2 are special tokens
        ("tokenizer_config.json", "model_max_length", (-1, "8"), ""),
    ],
)
def test_a_limit_that_the_positions_do_not_allow(tiny_model, name, field, values, end):
    (tiny_model / "sentence_bert_config.json").unlink()
    for value in values:
        edit(tiny_model / name, **{field: value})
        refused(tiny_model, f"{tiny_model / name}: {field} is {value!r}{end}")


def test_model_errors_are_value_errors_and_mha_errors(tiny_model):
    shutil.rmtree(tiny_model / "1_Pooling")
    for kind in (ValueError, mha.MhaError):
        refused(tiny_model, error=kind)
