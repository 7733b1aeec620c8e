"""Today's families of text models against transformers in float64, with small random models of their structure."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from modern_models import FULL, LENGTH, LOCAL, MODELS, attention_weights, hidden_states, write_modern
from small_models import SENTENCES
from tiny_models import edit, states_of_packed

import mha_core as mha
import mha_text as mt

each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def folder(once):
    """A function to the directory of a model."""
    return partial(once, write_modern)


@pytest.fixture
def copied(folder, tmp_path):
    """A function that copies a model, and changes its config.json."""

    def of(name, without=(), **changes):
        target = shutil.copytree(folder(name), tmp_path / "copy")
        (target / "modules.json").unlink()  # pooling by the mean, as it is
        edit(target / "config.json", without, **changes)
        return target

    return of


def texts():
    """Texts of several lengths, up to LENGTH tokens."""
    words = " ".join(SENTENCES).split()
    return ["", "a", "a", " ".join(words[:4]), " ".join(words[4:9]), " ".join(words[9:20]), "a " * (LENGTH - 2)]


def error(encoder, name):
    """The largest difference from transformers, relative to the largest number in a text."""
    ids, cut = encoder.tokenizer(texts())
    assert cut == 0 and max(map(len, ids)) == LENGTH
    truths = [hidden_states(name, text) for text in ids]
    pairs = zip(states_of_packed(encoder, ids), truths, strict=True)
    return max(np.abs(states - truth).max() / np.abs(truth).max() for states, truth in pairs)


def read(path, **options):
    return mt.TextEncoder.from_pretrained(path, dtype="float64", **options)


@each_model
def test_hidden_states_of_packed_texts_equal_those_of_transformers(folder, name):
    assert error(read(folder(name)), name) < 1e-10


@pytest.mark.parametrize("backend", ["torch", "array_api_strict"])
@pytest.mark.parametrize("name", ["modernbert", "gemma3 in both directions"])
def test_hidden_states_on_other_backends(folder, name, backend):
    assert error(read(folder(name), backend=backend), name) < 1e-10


@pytest.mark.parametrize("name", ["nomic", "gte", "jina 3"])
def test_files_with_the_names_of_transformers_and_of_the_original_models(folder, name):
    """transformers writes the names that the original models have, unless told not to."""
    encoder = read(folder(name, save_original_format=False))
    assert error(encoder, name) < 1e-10
    for key, x in read(folder(name)).model.arrays().items():
        np.testing.assert_array_equal(encoder.model.arrays()[key], x)


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


@pytest.mark.parametrize("name", OLD_NAMES)
def test_settings_under_the_names_of_older_files(copied, name):
    without, changes = OLD_NAMES[name]
    assert error(read(copied(name, without, **changes)), name) < 1e-10


def test_the_first_gte_files_have_a_scaled_base(copied, folder):
    """Their "ntk" with a factor of 8 is 8 times the base, and rates divided by 8^(2 / dim)."""
    new = {"model_type": "new", "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "rope_theta": 20_000}
    new |= {"rope_scaling": {"type": "ntk", "factor": 8.0}, "logn_attention_scale": False}
    path = copied("gte", ["rope_parameters"], **new)
    scaled = {"rope_type": "linear", "factor": 8.0 ** (2 / 8), "rope_theta": 160_000.0}
    older = read(path).model.arrays()
    shutil.copyfile(folder("gte") / "config.json", path / "config.json")
    edit(path / "config.json", rope_parameters=scaled)
    for key, x in read(path).model.arrays().items():
        np.testing.assert_allclose(x, older[key], rtol=1e-13, atol=1e-15)


def test_each_text_alone_equals_the_text_among_others(folder):
    """Positions begin at 0 in each text."""
    encoder = read(folder("modernbert"))
    ids, _ = encoder.tokenizer(texts())
    for among, text in zip(states_of_packed(encoder, ids), ids, strict=True):
        (alone,) = states_of_packed(encoder, [text])
        np.testing.assert_allclose(among, alone, rtol=0, atol=1e-13)


def test_attention_maps_are_those_of_each_layer_and_its_window(folder):
    encoder = read(folder("gemma3"))
    maps, tokens = encoder.attention_maps("a bird " * 15)
    ((ids,), _), distance = encoder.tokenizer(["a bird " * 15]), np.subtract.outer(*[np.arange(len(tokens))] * 2)
    np.testing.assert_allclose(maps, attention_weights("gemma3", ids), rtol=0, atol=1e-12)
    causal, local = distance >= 0, (distance >= 0) & (distance < 10)
    for at, kind in enumerate([LOCAL] * 5 + [FULL]):
        np.testing.assert_array_equal((maps[at] > 0).all(axis=0), local if kind == LOCAL else causal)


def test_no_kernel_of_a_plain_layer_computes_these_layers(folder):
    """They declare neither norms of queries nor norms after sublayers."""
    layer, x = read(folder("gemma3")).model.encoder.layers[0], np.ones((5, 36))
    reasons = dict(mha.explain(layer, x).rejected)
    assert "attention.norm_q=RMSNorm" in reasons["chunks"] and "post_norm_2=RMSNorm" in reasons["chunks"]


@each_model
def test_a_changed_model_is_saved_and_read_back(folder, tmp_path, name):
    encoder = mt.TextEncoder.from_pretrained(folder(name))
    tables = {key for key in encoder.model.arrays() if ".rotary." in key}
    assert len(tables) == 2 * len(encoder.model.patterns)
    layers = replace(encoder.model, patterns=()).map(lambda x: x * np.float32(0.75) + np.float32(0.125))
    changed = replace(encoder, model=replace(layers, patterns=encoder.model.patterns))
    changed.save_pretrained(tmp_path / "new")
    again = mt.TextEncoder.from_pretrained(tmp_path / "new")
    shifted = MODELS[name][0] == "gemma3_text"  # less 1 in the file, some of their weights lose a bit
    for key, x in changed.model.arrays().items():
        np.testing.assert_allclose(again.model.arrays()[key], x, rtol=0, atol=2.0**-23 if shifted and "norm" in key else 0)
    np.testing.assert_allclose(again.encode(["a", "the bird"]), changed.encode(["a", "the bird"]), atol=1e-5 * shifted)


def test_changed_tables_are_not_saved(folder, tmp_path):
    encoder = mt.TextEncoder.from_pretrained(folder("qwen3"))
    changed = replace(encoder, model=encoder.model.map(lambda x: x + np.float32(0.125)))
    with pytest.raises(mt.ModelError, match=r"patterns\.0\.rotary\.cos was changed, but .*config\.json determines it"):
        changed.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_gradients_of_all_weights_but_no_tables(folder):
    encoder, sample = read(folder("gemma3")), ["a bird", "the tree at dawn"]
    vectors, pullback = mha.vjp(encoder, sample)
    d, rng = np.ones_like(vectors), np.random.default_rng(0)
    gradients, arrays = pullback(d)[0].model.arrays(), encoder.model.arrays()
    assert set(gradients) == {key for key in arrays if ".rotary." not in key}
    for key in ("encoder.layers.1.attention.norm_q.weight", "encoder.layers.5.post_norm_1.weight", "words"):
        direction = rng.standard_normal(arrays[key].shape)

        def moved(step, key=key, direction=direction):
            model = encoder.model.map(lambda x: x + step * direction if x is arrays[key] else x)
            return replace(encoder, model=model)(sample).sum()

        expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose((gradients[key] * direction).sum(), expected, rtol=1e-6)


def test_a_layer_file_keeps_the_whole_model(folder, tmp_path):
    encoder = read(folder("modernbert"))
    encoder.model.save(tmp_path / "model")
    again = replace(encoder, model=type(encoder.model).load(tmp_path / "model"))
    np.testing.assert_array_equal(again.encode(["a bird"]), encoder.encode(["a bird"]))
