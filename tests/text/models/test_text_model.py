"""Every family of text models against transformers, with small random models made here."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from small_models import FAMILIES, LENGTH, reference, texts, write_model
from tiny_models import edit, editing, states_of_packed
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import mha_core as mha
import mha_text as mt

OFFSET = [kind for kind, (_, first) in FAMILIES.items() if first]
each_family = pytest.mark.parametrize("kind", FAMILIES)
each_with_offset = pytest.mark.parametrize("kind", OFFSET)
each_backend = pytest.mark.parametrize("backend_name", ["numpy", "torch", "array_api_strict"])


@pytest.fixture
def folder(once):
    """A function to the directory of a family's model."""
    return partial(once, write_model)


def text_of(encoder, length):
    """A text of ``length`` tokens, special ones included: one word of a single token, repeated."""
    word = next(word for word in ("the", "a", "of") if len(encoder.tokenizer([f"{word} {word}"])[0][0]) == 4)
    return " ".join([word] * (length - 2))


def close(actual, expected, atol=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def judge(folder, texts, **options):
    """Compare hidden states in float64, and vectors, with those of transformers; in float32 vectors alone."""
    wide, narrow = (mt.TextEncoder.from_pretrained(folder, dtype=each, **options) for each in ("float64", "float32"))
    expected = reference(folder)
    ids, cut = wide.tokenizer(texts)
    assert cut == 0
    truths = [expected(text)[0] for text in ids]
    for states, truth in zip(states_of_packed(wide, ids), truths, strict=True):
        close(states, truth)
    for encoder, atol in ((wide, 1e-6), (narrow, 1e-5)):
        close(encoder.backend.to_numpy(encoder.encode(texts)), [truth.mean(axis=0) for truth in truths], atol)
    return truths


def refused(folder, message):
    with pytest.raises(mt.ModelError, match=message):
        mt.TextEncoder.from_pretrained(folder)


@each_backend
@each_family
def test_hidden_states_and_vectors_equal_those_of_transformers(folder, kind, backend_name, rng):
    judge(folder(kind), texts(rng), backend=backend_name)


@each_backend
@each_family
def test_attention_maps_equal_those_of_transformers(folder, kind, backend_name, rng):
    encoder = mt.TextEncoder.from_pretrained(folder(kind), backend=backend_name, dtype="float64")
    for text in texts(rng)[4:]:
        maps, tokens = encoder.attention_maps(text)
        _, expected = reference(folder(kind))(encoder.tokenizer([text])[0][0])
        assert maps.shape == (2, 4, len(tokens), len(tokens))
        close(encoder.backend.to_numpy(maps), expected)


@each_family
def test_tokens_of_attention_maps_spell_their_text(folder, kind):
    """Special tokens and ## are spelled as in the vocabulary; tokens of bytes as the letters of the text."""
    encoder = mt.TextEncoder.from_pretrained(folder(kind))
    start, end = ("[CLS]", "[SEP]") if FAMILIES[kind][0] == "wordpiece" else ("<s>", "</s>")
    _, tokens = encoder.attention_maps("the ete")
    assert (tokens[0], tokens[-1]) == (start, end)
    assert "".join(token.replace("##", "").replace("▁", "") for token in tokens[1:-1]) == "theete"


def test_bytes_that_are_not_a_whole_letter_are_shown_as_bytes(folder):
    _, tokens = mt.TextEncoder.from_pretrained(folder("roberta")).attention_maps("the été\n<mask> 天\xa0")
    assert "".join(tokens) == r"<s>the▁\xc3\xa9t\xc3\xa9\n<mask>▁\xe5\xa4\xa9\xc2\xa0</s>"


def test_a_letter_of_several_bytes_is_shown_as_itself(tmp_path):
    folder = write_model(tmp_path / "m", "roberta", vocab_size=323)
    with editing(folder / "tokenizer.json") as settings:
        settings["model"]["vocab"] |= {"Ã©": 320, "ĠÃ©": 321}  # é, alone and after a space
        settings["model"]["merges"] += [["Ã", "©"], ["Ġ", "Ã©"]]
        settings["added_tokens"].append(settings["added_tokens"][-1] | {"id": 322, "content": "Ġ©", "special": False})
    _, tokens = mt.TextEncoder.from_pretrained(folder).attention_maps("été étéĠ©")
    # the last but one is an added token, spelled as it is
    assert tokens == ["<s>", "é", "t", "é", "▁é", "t", "é", "Ġ©", "</s>"]


@each_family
def test_sentence_transformers_gives_the_same_vectors(folder, kind, rng):
    from sentence_transformers import SentenceTransformer

    sample = texts(rng)
    expected = SentenceTransformer(str(folder(kind)), device="cpu").encode(sample)
    close(mt.TextEncoder.from_pretrained(folder(kind)).encode(sample), expected, 1e-5)


@each_family
def test_a_padding_token_in_a_text_has_the_same_position_as_in_transformers(folder, kind):
    sample = ["a <pad> b [PAD] c", "<pad>", "<pad><pad> a", "[PAD] a"]
    ids = mt.TextEncoder.from_pretrained(folder(kind)).tokenizer(sample)[0]
    padding = 1 if kind in OFFSET else 0
    assert sum(text.count(padding) for text in ids) >= 2
    judge(folder(kind), sample)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"])
@pytest.mark.parametrize(("kind", "setting"), [("bert", "hidden_act"), ("distilbert", "activation")])
def test_activations_equal_those_of_transformers(kind, setting, activation, tmp_path, rng):
    folder = write_model(tmp_path / "m", kind, **{setting: activation})
    if activation == "gelu":
        edit(folder / "config.json", without=[setting])  # it is also the default
    judge(folder, texts(rng)[3:5])


@each_family
def test_a_whole_model_with_head_and_prefix_gives_the_same_results(folder, kind, tmp_path, rng):
    alone, whole = folder(kind), write_model(tmp_path / "whole", kind, masked_lm=True)
    names = load_file(whole / "model.safetensors")
    assert any(not name.startswith(tuple(load_file(alone / "model.safetensors"))) for name in names)
    assert len({name.partition(".")[0] for name in names}) > 1
    judge(whole, texts(rng)[:5])


@each_with_offset
def test_texts_may_fill_all_positions_after_the_padding(folder, kind):
    encoder = mt.TextEncoder.from_pretrained(folder(kind), dtype="float64")
    assert encoder.max_seq_length == LENGTH
    full, more = text_of(encoder, LENGTH), text_of(encoder, LENGTH + 1)
    (ids,), _ = encoder.tokenizer([full])
    assert encoder.model.position_ids(ids) == [*range(2, LENGTH + 2)]
    judge(folder(kind), [full])
    with pytest.warns(mt.TruncationWarning, match=f"^1 of 1 texts are longer than {LENGTH} tokens"):
        np.testing.assert_array_equal(encoder.encode([more]), encoder.encode([full]))


def test_xlm_roberta_has_512_of_514_positions(tmp_path):
    folder = write_model(tmp_path / "m", "xlm-roberta", max_position_embeddings=514)
    edit(folder / "sentence_bert_config.json", max_seq_length=512)
    encoder = mt.TextEncoder.from_pretrained(folder)
    assert encoder.max_seq_length == 512
    (truth,) = judge(folder, [text_of(encoder, 512)])
    assert len(truth) == 512
    edit(folder / "sentence_bert_config.json", max_seq_length=514)
    refused(folder, "max_seq_length is 514; expected 2 to 512")


@pytest.mark.parametrize("padding", [0, 1, 5])
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_positions_begin_after_the_padding_of_the_configuration(kind, padding, tmp_path, rng):
    folder = write_model(tmp_path / "m", kind, pad_token_id=padding, max_position_embeddings=LENGTH + padding + 1)
    assert mt.TextEncoder.from_pretrained(folder).max_seq_length == LENGTH
    judge(folder, texts(rng))


@each_with_offset
def test_padding_is_1_by_default(folder, kind, tmp_path, rng):
    path = write_model(tmp_path / "m", kind) / "config.json"
    edit(path, without=["pad_token_id"])
    assert "pad_token_id" not in path.read_text()
    judge(path.parent, texts(rng)[:5])


def test_mpnet_ignores_the_padding_of_the_configuration_and_uses_32_buckets_of_a_larger_table(tmp_path, rng):
    judge(write_model(tmp_path / "m", "mpnet", pad_token_id=3, relative_attention_num_buckets=40), texts(rng))


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        *(("roberta", "pad_token_id", value, f"pad_token_id is {value!r}; expected ") for value in (-1, None, "1", True)),
        ("roberta", "max_position_embeddings", 2, "max_position_embeddings is 2; expected more than 2, where positions begin"),
        (
            "mpnet",
            "relative_attention_num_buckets",
            16,
            r"relative_attention_bias.weight has shape \(32, 4\), expected \(16, 4\)",
        ),
        ("mpnet", "relative_attention_num_buckets", 3, "relative_attention_num_buckets is 3; expected at least 4"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(folder, tmp_path, kind, field, value, message):
    copy = shutil.copytree(folder(kind), tmp_path / "copy")
    edit(copy / "config.json", **{field: value})
    refused(copy, message)


def test_relative_bias_has_the_buckets_of_mpnet():
    """With one key, the log-sum-exp of each query is its bias, which is an entry of the table."""
    table = np.arange(32.0)[:, None]
    distances = np.arange(-3000, 3001)  # key - query
    query, key = np.zeros((1, len(distances), 1)), np.zeros((1, 1, 1))
    bias = mha.relative_bias(table, bidirectional=True, max_distance=128)
    buckets = mha.attention_state(query, key, key, bias=bias, query_offset=-3000).lse[0]
    expected = MPNetEncoder.relative_position_bucket(torch.asarray(distances), num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(buckets[::-1], expected.numpy())
    assert len(set(buckets)) == 31  # one bucket would be for a key after the query at distance 0


def test_electra_with_narrower_embeddings_is_refused(tmp_path):
    folder = write_model(tmp_path / "m", "electra", embedding_size=16)
    refused(folder, r"word_embeddings.weight has shape \(\d+, 16\), expected \(\d+, 32\)")


@pytest.mark.parametrize("name", ["dim", "hidden_dim", "n_heads", "n_layers"])
def test_a_missing_field_is_reported_by_the_name_of_its_family(folder, tmp_path, name):
    copy = shutil.copytree(folder("distilbert"), tmp_path / "copy")
    edit(copy / "config.json", without=[name])
    refused(copy, f"config.json has no '{name}'")


@each_family
def test_a_missing_weight_is_reported_by_the_name_of_its_family(kind, tmp_path):
    path = write_model(tmp_path / "m", kind) / "model.safetensors"
    weights = load_file(path)
    read = [name for name in weights if not name.startswith("pooler.")]
    for name in read[::5]:
        save_file({each: array for each, array in weights.items() if each != name}, path)
        refused(path.parent, f"{name} is missing")
    save_file({name: weights[name] for name in read}, path)
    assert mt.TextEncoder.from_pretrained(path.parent).dim == 32


def test_a_text_model_is_saved_and_loaded(folder, tmp_path, rng):
    """Layer.save also keeps settings: the padding, and the absence of token types."""
    encoder = mt.TextEncoder.from_pretrained(folder("mpnet"), dtype="float64")
    encoder.model.save(tmp_path / "model.safetensors")
    again = type(encoder.model).load(tmp_path / "model.safetensors")
    ids = encoder.tokenizer(texts(rng)[3:4])[0][0]
    assert again.position_ids(ids) == encoder.model.position_ids(ids)
    arrays = np.asarray(ids), np.asarray(again.position_ids(ids))
    contiguous = encoder.model.map(np.ascontiguousarray)  # as files store arrays: BLAS may round transposed ones differently
    np.testing.assert_array_equal(again(*arrays), contiguous(*arrays))
