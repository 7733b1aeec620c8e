"""Every family of text models against transformers, with small random models made here."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from conftest import mha
from small_models import FAMILIES, LENGTH, reference, texts, write_model

OFFSET = [kind for kind, (_, first) in FAMILIES.items() if first]
each_family = pytest.mark.parametrize("kind", FAMILIES)
each_with_offset = pytest.mark.parametrize("kind", OFFSET)
each_backend = pytest.mark.parametrize("backend_name", ["numpy", "torch", "array_api_strict"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function to the directory of a family's model, which is made once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = write_model(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return of


def rewrite(path, without=(), **changes):
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in without}))


def hidden_states(encoder, ids):
    """The hidden states of each text, computed with all texts laid end to end."""
    backend, rows = encoder.backend, [at for text in ids for at in encoder.model.position_ids(text)]
    tokens = backend.xp.asarray([token for text in ids for token in text])
    mask = mha.packed([len(text) for text in ids])
    together = backend.to_numpy(encoder.model(tokens, backend.xp.asarray(rows), mask=mask))
    ends = np.cumsum([0, *map(len, ids)])
    return [together[start:stop] for start, stop in pairwise(ends)]


def text_of(encoder, length):
    """A text of ``length`` tokens, special ones included: one word of a single token, repeated."""
    word = next(word for word in ("the", "a", "of") if len(encoder.tokenizer([f"{word} {word}"])[0][0]) == 4)
    return " ".join([word] * (length - 2))


def judge(folder, some, *, atol=1e-10, **options):
    """Compare hidden states in float64, and vectors, with those of transformers."""
    encoder, expected = mha.TextEncoder.from_pretrained(folder, dtype="float64", **options), reference(folder)
    ids, cut = encoder.tokenizer(some)
    assert cut == 0
    truths = [expected(text)[0] for text in ids]
    for found, truth in zip(hidden_states(encoder, ids), truths, strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=atol)
    vectors = encoder.backend.to_numpy(encoder.encode(some))
    np.testing.assert_allclose(vectors, [truth.mean(axis=0) for truth in truths], rtol=0, atol=1e-6)
    return truths


@each_backend
@each_family
def test_hidden_states_and_vectors_equal_those_of_transformers(folder, kind, backend_name, rng):
    judge(folder(kind), texts(rng), backend=backend_name)


@each_backend
@each_family
def test_vectors_in_float32_are_near_those_of_transformers_in_float64(folder, kind, backend_name, rng):
    encoder, some = mha.TextEncoder.from_pretrained(folder(kind), backend=backend_name), texts(rng)
    expected = reference(folder(kind))
    truths = [expected(ids)[0].mean(axis=0) for ids in encoder.tokenizer(some)[0]]
    np.testing.assert_allclose(encoder.backend.to_numpy(encoder.encode(some)), truths, rtol=0, atol=1e-5)


@each_backend
@each_family
def test_attention_maps_equal_those_of_transformers(folder, kind, backend_name, rng):
    encoder = mha.TextEncoder.from_pretrained(folder(kind), backend=backend_name, dtype="float64")
    for text in texts(rng)[4:]:
        maps, tokens = encoder.attention_maps(text)
        _, expected = reference(folder(kind))(encoder.tokenizer([text])[0][0])
        assert maps.shape == (2, 4, len(tokens), len(tokens))
        np.testing.assert_allclose(encoder.backend.to_numpy(maps), expected, rtol=0, atol=1e-10)


@each_family
def test_tokens_of_attention_maps_spell_their_text(folder, kind):
    """Special tokens and ## are spelled as in the vocabulary; tokens of bytes as the letters of the text."""
    encoder = mha.TextEncoder.from_pretrained(folder(kind))
    start, end = ("[CLS]", "[SEP]") if FAMILIES[kind][0] == "wordpiece" else ("<s>", "</s>")
    _, tokens = encoder.attention_maps("the ete")
    assert (tokens[0], tokens[-1]) == (start, end)
    assert "".join(token.replace("##", "").replace("▁", "") for token in tokens[1:-1]) == "theete"


def test_bytes_that_are_not_a_whole_letter_are_shown_as_bytes(folder):
    _, tokens = mha.TextEncoder.from_pretrained(folder("roberta")).attention_maps("the été\n<mask> 天\xa0")
    assert "".join(tokens) == r"<s>the▁\xc3\xa9t\xc3\xa9\n<mask>▁\xe5\xa4\xa9\xc2\xa0</s>"


def test_a_letter_of_several_bytes_is_shown_as_itself(tmp_path):
    path = write_model(tmp_path / "m", "roberta", vocab_size=323) / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["model"]["vocab"] |= {"Ã©": 320, "ĠÃ©": 321}  # é, alone and after a space
    settings["model"]["merges"] += [["Ã", "©"], ["Ġ", "Ã©"]]
    settings["added_tokens"].append(settings["added_tokens"][-1] | {"id": 322, "content": "Ġ©", "special": False})
    path.write_text(json.dumps(settings))
    _, tokens = mha.TextEncoder.from_pretrained(path.parent).attention_maps("été étéĠ©")
    assert tokens == [
        "<s>",
        "é",
        "t",
        "é",
        "▁é",
        "t",
        "é",
        "Ġ©",
        "</s>",
    ]  # the last but one is an added token, spelled as it is


@each_family
def test_sentence_transformers_gives_the_same_vectors(folder, kind, rng):
    from sentence_transformers import SentenceTransformer

    some = texts(rng)
    expected = SentenceTransformer(str(folder(kind)), device="cpu").encode(some)
    found = mha.TextEncoder.from_pretrained(folder(kind)).encode(some)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@each_family
def test_a_padding_token_in_a_text_has_the_same_position_as_in_transformers(folder, kind):
    some = ["a <pad> b [PAD] c", "<pad>", "<pad><pad> a", "[PAD] a"]
    ids = mha.TextEncoder.from_pretrained(folder(kind)).tokenizer(some)[0]
    padding = 1 if kind in OFFSET else 0
    assert sum(text.count(padding) for text in ids) >= 2
    judge(folder(kind), some)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"])
@pytest.mark.parametrize(("kind", "setting"), [("bert", "hidden_act"), ("distilbert", "activation")])
def test_activations_equal_those_of_transformers(kind, setting, activation, tmp_path, rng):
    folder = write_model(tmp_path / "m", kind, **{setting: activation})
    judge(folder, texts(rng)[3:5])
    if activation == "gelu":
        rewrite(folder / "config.json", without=[setting])  # gelu is also the default
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
    encoder = mha.TextEncoder.from_pretrained(folder(kind), dtype="float64")
    assert encoder.max_seq_length == LENGTH
    full, more = text_of(encoder, LENGTH), text_of(encoder, LENGTH + 1)
    (ids,), _ = encoder.tokenizer([full])
    assert encoder.model.position_ids(ids) == [*range(2, LENGTH + 2)]
    judge(folder(kind), [full])
    with pytest.warns(mha.TruncationWarning, match=f"^1 of 1 texts are longer than {LENGTH} tokens"):
        np.testing.assert_array_equal(encoder.encode([more]), encoder.encode([full]))


def test_xlm_roberta_has_512_of_514_positions(tmp_path):
    folder = write_model(tmp_path / "m", "xlm-roberta", max_position_embeddings=514)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    encoder = mha.TextEncoder.from_pretrained(folder)
    assert encoder.max_seq_length == 512
    (truth,) = judge(folder, [text_of(encoder, 512)])
    assert len(truth) == 512
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 514}')
    with pytest.raises(mha.ModelError, match="max_seq_length is 514; expected 2 to 512"):
        mha.TextEncoder.from_pretrained(folder)


@pytest.mark.parametrize("padding", [0, 1, 5])
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_positions_begin_after_the_padding_of_the_configuration(kind, padding, tmp_path, rng):
    folder = write_model(tmp_path / "m", kind, pad_token_id=padding, max_position_embeddings=LENGTH + padding + 1)
    assert mha.TextEncoder.from_pretrained(folder).max_seq_length == LENGTH
    judge(folder, texts(rng))


@each_with_offset
def test_padding_is_1_by_default(folder, kind, tmp_path, rng):
    path = write_model(tmp_path / "m", kind) / "config.json"
    rewrite(path, without=["pad_token_id"])
    assert "pad_token_id" not in path.read_text()
    judge(path.parent, texts(rng)[:5])


def test_mpnet_ignores_the_padding_of_the_configuration(tmp_path, rng):
    folder = write_model(tmp_path / "m", "mpnet", pad_token_id=3)
    judge(folder, texts(rng)[:5])


@pytest.mark.parametrize("value", [-1, None, "1", True])
def test_paddings_that_are_not_ids_are_refused(tmp_path, value):
    path = write_model(tmp_path / "m", "roberta") / "config.json"
    rewrite(path, pad_token_id=value)
    with pytest.raises(mha.ModelError, match=f"config.json: pad_token_id is {value!r}; expected "):
        mha.TextEncoder.from_pretrained(path.parent)


def test_positions_that_end_before_the_padding_are_refused(tmp_path):
    path = write_model(tmp_path / "m", "roberta", max_position_embeddings=2) / "config.json"
    with pytest.raises(mha.ModelError, match="max_position_embeddings is 2; expected more than 2, where positions begin"):
        mha.TextEncoder.from_pretrained(path.parent)


def test_relative_bias_has_the_buckets_of_mpnet():
    """With one key, the log-sum-exp of each query is its bias, which is an entry of the table."""
    table = np.arange(32.0)[:, None]
    distances = np.arange(-3000, 3001)  # key - query
    query, key = np.zeros((1, len(distances), 1)), np.zeros((1, 1, 1))
    bias = mha.relative_bias(table, bidirectional=True, max_distance=128)
    found = mha.attention_state(query, key, key, bias=bias, query_offset=-3000).lse[0]
    expected = MPNetEncoder.relative_position_bucket(torch.asarray(distances), num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(found[::-1], expected.numpy())
    assert len(set(found)) == 31  # one bucket would be for a key after the query at distance 0


def test_mpnet_uses_32_buckets_of_a_larger_table(tmp_path, rng):
    judge(write_model(tmp_path / "m", "mpnet", relative_attention_num_buckets=40), texts(rng))


def test_a_table_whose_buckets_differ_from_the_configuration_is_refused(folder, tmp_path):
    path = write_model(tmp_path / "m", "mpnet") / "config.json"
    rewrite(path, relative_attention_num_buckets=16)
    with pytest.raises(mha.ModelError, match=r"relative_attention_bias.weight has shape \(32, 4\), expected \(16, 4\)"):
        mha.TextEncoder.from_pretrained(path.parent)
    rewrite(path, relative_attention_num_buckets=3)
    with pytest.raises(mha.ModelError, match="relative_attention_num_buckets is 3; expected at least 4"):
        mha.TextEncoder.from_pretrained(path.parent)


def test_electra_with_narrower_embeddings_is_refused(tmp_path):
    folder = write_model(tmp_path / "m", "electra", embedding_size=16)
    with pytest.raises(mha.ModelError, match=r"word_embeddings.weight has shape \(\d+, 16\), expected \(\d+, 32\)"):
        mha.TextEncoder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["dim", "hidden_dim", "n_heads", "n_layers"])
def test_a_missing_field_is_reported_by_the_name_of_its_family(tmp_path, name):
    path = write_model(tmp_path / "m", "distilbert") / "config.json"
    rewrite(path, without=[name])
    with pytest.raises(mha.ModelError, match=f"config.json has no '{name}'"):
        mha.TextEncoder.from_pretrained(path.parent)


@each_family
def test_a_missing_weight_is_reported_by_the_name_of_its_family(kind, tmp_path):
    path = write_model(tmp_path / "m", kind) / "model.safetensors"
    weights = load_file(path)
    read = [name for name in weights if not name.startswith("pooler.")]
    for name in read[::5]:
        save_file({each: array for each, array in weights.items() if each != name}, path)
        with pytest.raises(mha.ModelError, match=f"{name} is missing"):
            mha.TextEncoder.from_pretrained(path.parent)
    save_file({name: weights[name] for name in read}, path)
    assert mha.TextEncoder.from_pretrained(path.parent).dim == 32


def test_a_text_model_is_saved_and_loaded(folder, tmp_path, rng):
    """Layer.save also keeps settings: the padding, and the absence of token types."""
    encoder = mha.TextEncoder.from_pretrained(folder("mpnet"), dtype="float64")
    encoder.model.save(tmp_path / "model.safetensors")
    again = type(encoder.model).load(tmp_path / "model.safetensors")
    ids = encoder.tokenizer(texts(rng)[3:4])[0][0]
    assert again.position_ids(ids) == encoder.model.position_ids(ids)
    arrays = np.asarray(ids), np.asarray(again.position_ids(ids))
    contiguous = encoder.model.map(np.ascontiguousarray)  # as files store arrays: BLAS may round transposed ones differently
    np.testing.assert_array_equal(again(*arrays), contiguous(*arrays))
