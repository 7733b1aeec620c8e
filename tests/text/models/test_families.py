"""Every family of text models against transformers, with small random models made here."""

import shutil
from functools import partial

import numpy as np
import pytest
from needs import Library
from safetensors.numpy import load_file, save_file
from small_models import FAMILIES, LENGTH, MODELS, OFFSET, TEXTS, loaded, model, states_and_weights, write_model
from tiny_models import close, edit, editing, refused, states_of_packed

import mha_core as mha
import mha_text as mt

transformers = Library("transformers")
each_family = pytest.mark.parametrize("name", FAMILIES)
LONG = " ".join(["a"] * (LENGTH - 2))
PADDING = ["a <pad> b [PAD] c", "<pad>", "<pad><pad> a", "[PAD] a"]


@pytest.fixture
def folder(once):
    """A function to the directory of a model."""
    return partial(once, write_model)


@pytest.fixture
def copied(folder, tmp_path):
    """A function that copies a model, and changes its config.json."""

    def of(name, without=(), **changes):
        target = shutil.copytree(folder(name), tmp_path / "copy")
        edit(target / "config.json", without, **changes)
        return target

    return of


def judge(folder, truth, texts=TEXTS, backend="numpy"):
    """Compare ids, hidden states, attention maps and vectors with those of a model of transformers; return the encoder."""
    wide, narrow = (mt.TextEncoder.from_pretrained(folder, dtype=each, backend=backend) for each in ("float64", "float32"))
    ids, cut = wide.tokenizer(texts)
    assert (ids, cut) == (transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"], 0)
    expected, weights = zip(*(states_and_weights(truth, text) for text in ids), strict=True)
    for states, truth in zip(states_of_packed(wide, ids), expected, strict=True):
        close(states, truth, 1e-10)
    for encoder, atol in ((wide, 1e-6), (narrow, 1e-5)):
        vectors, xp = encoder.encode(texts), encoder.backend.xp
        assert type(vectors) is type(xp.zeros(1)) and vectors.dtype == xp.float32
        close(encoder.backend.to_numpy(vectors), [states.mean(axis=0) for states in expected], atol)
    for text, truth in list(zip(texts, weights, strict=True))[-2:]:
        close(wide.backend.to_numpy(wide.attention_maps(text)[0]), truth, 1e-10)
    return wide


OTHERS = [
    (name, backend)
    for name in (*FAMILIES, "modernbert", "gemma3 in both directions")
    for backend in ("torch", "array_api_strict")
]


@pytest.mark.parametrize(("name", "backend"), [*((name, "numpy") for name in MODELS), *OTHERS])
def test_ids_hidden_states_attention_maps_and_vectors_equal_those_of_transformers(folder, name, backend):
    encoder = judge(folder(name), model(name), [*PADDING, *TEXTS, *([LONG] if backend == "numpy" else [])], backend)
    ids, _ = encoder.tokenizer([*PADDING, LONG])
    assert len(ids[-1]) == LENGTH
    assert sum(text.count(1 if name in OFFSET else 0) for text in ids) >= 2, "padding tokens have positions of their own"


@each_family
def test_tokens_of_attention_maps_spell_their_text(folder, name):
    """Special tokens and ## are spelled as in the vocabulary; tokens of bytes as the letters of the text."""
    _, tokens = mt.TextEncoder.from_pretrained(folder(name)).attention_maps("the ete")
    assert (tokens[0], tokens[-1]) in (("[CLS]", "[SEP]"), ("<s>", "</s>"))
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


# settings


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"])
@pytest.mark.parametrize(("name", "setting"), [("bert", "hidden_act"), ("distilbert", "activation")])
def test_activations_equal_those_of_transformers(name, setting, activation, tmp_path):
    folder = write_model(tmp_path / "m", name, **{setting: activation})
    if activation == "gelu":
        edit(folder / "config.json", without=[setting])  # it is also the default
    judge(folder, model(name, **{setting: activation}), TEXTS[3:5])


@each_family
def test_a_whole_model_with_head_and_prefix_gives_the_same_results(name, tmp_path):
    whole = write_model(tmp_path / "whole", name, auto="AutoModelForMaskedLM")
    assert len({key.partition(".")[0] for key in load_file(whole / "model.safetensors")}) > 1
    judge(whole, loaded(whole), TEXTS[:5])


@pytest.mark.parametrize("name", OFFSET)
def test_positions_that_texts_may_fill_begin_after_the_padding(folder, copied, name):
    encoder = mt.TextEncoder.from_pretrained(folder(name), dtype="float64")
    assert encoder.max_seq_length == LENGTH
    (ids,), _ = encoder.tokenizer([LONG])
    assert encoder.model.position_ids(ids) == [*range(2, LENGTH + 2)]
    with pytest.warns(mt.TruncationWarning, match=f"^1 of 1 texts are longer than {LENGTH} tokens"):
        np.testing.assert_array_equal(encoder.encode([f"{LONG} a"]), encoder.encode([LONG]))
    path = copied(name, ["pad_token_id"])  # 1 by default
    judge(path, model(name), PADDING)
    edit(path / "sentence_bert_config.json", max_seq_length=LENGTH + 2)
    refused(path, f"max_seq_length is {LENGTH + 2}; expected 2 to {LENGTH}")


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_positions_begin_after_the_padding_of_the_configuration(name, padding, tmp_path):
    settings = {"pad_token_id": padding, "max_position_embeddings": LENGTH + padding + 1}
    encoder = judge(write_model(tmp_path / "m", name, **settings), model(name, **settings), [*PADDING, LONG])
    assert encoder.max_seq_length == LENGTH


def test_mpnet_ignores_the_padding_of_the_configuration_and_uses_32_buckets_of_a_larger_table(tmp_path):
    settings = {"pad_token_id": 3, "relative_attention_num_buckets": 40}
    judge(write_model(tmp_path / "m", "mpnet", **settings), model("mpnet", **settings), [*PADDING, LONG])


YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
GEMMA_BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
OLD_NAMES = {
    "modernbert": (["layer_types", "rope_parameters"], {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}),
    "qwen3": (["layer_types", "rope_parameters"], {"rope_theta": 1_000_000, "rope_scaling": None}),
    "qwen3 with windows": (["layer_types", "rope_parameters"], {"rope_theta": 10_000}),
    "qwen3 with yarn": (["rope_parameters"], {"rope_theta": 1e6, "rope_scaling": YARN | {"type": "yarn"}}),
    "gemma3": (["layer_types", "rope_parameters"], GEMMA_BASES),
    "gemma3 with linear scaling": (["rope_parameters"], GEMMA_BASES | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "nomic": (
        ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "layer_norm_eps", "rope_parameters"],
        {"n_embd": 32, "n_inner": 40, "n_head": 4, "n_layer": 2, "n_positions": LENGTH, "layer_norm_epsilon": 1e-12}
        | {"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "prenorm": False},
    ),
}


def arrays_equal(encoder, arrays, rtol=0.0, atol=0.0):
    for key, x in encoder.model.arrays().items():
        np.testing.assert_allclose(x, arrays[key], rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", OLD_NAMES)
def test_settings_under_the_names_of_older_files(folder, copied, name):
    without, changes = OLD_NAMES[name]
    expected = mt.TextEncoder.from_pretrained(folder(name), dtype="float64")
    older = mt.TextEncoder.from_pretrained(copied(name, without, **changes), dtype="float64")
    assert older.model.settings == expected.model.settings
    arrays_equal(older, expected.model.arrays())


@pytest.mark.parametrize("name", ["nomic", "gte", "jina 3"])
def test_files_with_the_names_of_transformers_and_of_the_original_models(folder, name):
    """transformers writes the names that the original models have, unless told not to."""
    path = folder(name, files=(("save_original_format", False),))
    arrays_equal(judge(path, model(name)), mt.TextEncoder.from_pretrained(folder(name), dtype="float64").model.arrays())


def test_the_first_gte_files_have_a_scaled_base(copied, folder):
    """Their "ntk" with a factor of 8 is 8 times the base, and rates divided by 8^(2 / dim)."""
    new = {"model_type": "new", "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "rope_theta": 20_000}
    new |= {"rope_scaling": {"type": "ntk", "factor": 8.0}, "logn_attention_scale": False}
    path = copied("gte", ["rope_parameters"], **new)
    older = mt.TextEncoder.from_pretrained(path, dtype="float64").model.arrays()
    shutil.copyfile(folder("gte") / "config.json", path / "config.json")
    scaled = {"rope_type": "linear", "factor": 8.0 ** (2 / 8), "rope_theta": 160_000.0}
    edit(path / "config.json", rope_parameters=scaled)
    arrays_equal(mt.TextEncoder.from_pretrained(path, dtype="float64"), older, rtol=1e-13, atol=1e-15)


@each_family
def test_a_missing_weight_is_reported_by_the_name_of_its_family(name, tmp_path):
    path = write_model(tmp_path / "m", name) / "model.safetensors"
    weights = load_file(path)
    read = [key for key in weights if not key.startswith("pooler.")]
    for key in read[::5]:
        save_file({each: array for each, array in weights.items() if each != key}, path)
        refused(path.parent, f"{key} is missing")
    save_file({key: weights[key] for key in read}, path)
    assert mt.TextEncoder.from_pretrained(path.parent).dim == 32


# the model as a layer


@pytest.mark.parametrize("name", ["mpnet", "modernbert"])
def test_a_file_of_a_layer_keeps_the_whole_model(folder, tmp_path, name):
    """Layer.save also keeps settings: the padding, the absence of token types, and windows."""
    whole = mt.TextEncoder.from_pretrained(folder(name), dtype="float64").model
    whole.save(tmp_path / "model.safetensors")
    again = type(whole).load(tmp_path / "model.safetensors")
    ids = np.asarray([3, 1, 5, 1, 7])
    assert again.position_ids(ids) == whole.position_ids(ids)
    positions = np.asarray(again.position_ids(ids))
    contiguous = whole.map(np.ascontiguousarray)  # as files store arrays: BLAS may round transposed ones differently
    np.testing.assert_array_equal(again(ids, positions), contiguous(ids, positions))


def test_no_kernel_of_a_plain_layer_computes_layers_with_more_norms(folder):
    """They declare neither norms of queries nor norms after sublayers."""
    layer, x = mt.TextEncoder.from_pretrained(folder("gemma3")).model.encoder.layers[0], np.ones((5, 36), np.float32)
    reasons = dict(mha.explain(layer, x).rejected)
    assert "attention.norm_q=RMSNorm" in reasons["chunks"] and "post_norm_2=RMSNorm" in reasons["chunks"]
