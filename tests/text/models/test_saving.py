"""Text encoders written by ``save_pretrained``, read back by us and by transformers; and their gradients."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_models import MODELS, TEXTS, loaded, states_and_weights, write_model
from tiny_models import close, editing, refused

import mha_core as mha
import mha_text as mt
from mha_text.models.dense import Dense


def with_weights(encoder, change):
    """Return the encoder with changed weights, but not tables of rotary embeddings, which are in no file."""
    patterns = encoder.model.patterns
    model = replace(encoder.model, patterns=()).map(change)
    return replace(encoder, model=replace(model, patterns=patterns))


@pytest.mark.parametrize("name", MODELS)
def test_a_changed_model_is_read_back_by_us_and_by_transformers(once, tmp_path, name):
    auto = "AutoModelForMaskedLM" if name == "roberta" else "AutoModel"  # a whole model, whose head is kept
    encoder = mt.TextEncoder.from_pretrained(once(write_model, name, auto=auto))
    changed = with_weights(encoder, lambda x: x * np.float32(0.75) + np.float32(0.125))
    changed.save_pretrained(tmp_path / "new" / "model")
    again = mt.TextEncoder.from_pretrained(tmp_path / "new" / "model")
    shifted = MODELS[name][0] == "gemma3_text"  # less 1 in the file, some weights of their norms lose a bit
    for key, x in changed.model.arrays().items():
        close(again.model.arrays()[key], x, 2.0**-23 if shifted and "norm" in key else 0)
    close(again.encode(TEXTS), changed.encode(TEXTS), 1e-5 * shifted)
    reference = loaded(tmp_path / "new" / "model")
    expected = [states_and_weights(reference, ids)[0].mean(axis=0) for ids in again.tokenizer(TEXTS)[0]]
    close(again.encode(TEXTS), expected, 1e-5)
    assert np.abs(again.encode(TEXTS) - encoder.encode(TEXTS)).max() > 0.01


def test_changed_tables_are_not_saved(once, tmp_path):
    encoder = mt.TextEncoder.from_pretrained(once(write_model, "qwen3"))
    changed = replace(encoder, model=encoder.model.map(lambda x: x + np.float32(0.125)))
    with pytest.raises(mt.ModelError, match=r"patterns\.0\.rotary\.cos was changed, but .*config\.json determines it"):
        changed.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def source(once, tmp_path):
    """A copy of a small BERT, which a test may break."""
    return shutil.copytree(once(write_model, "bert"), tmp_path / "source")


def test_weights_that_the_encoder_does_not_use_are_kept_and_half_precision_stays_half(source, tmp_path):
    mt.TextEncoder.from_pretrained(source).save_pretrained(tmp_path / "out")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert set(before) == set(after)
    assert any("pooler" in name for name in after)
    for name, x in before.items():
        np.testing.assert_allclose(after[name], x, rtol=1e-7)
    mt.TextEncoder.from_pretrained(source, dtype="float16").save_pretrained(tmp_path / "half")
    assert load_file(tmp_path / "half" / "model.safetensors")["embeddings.word_embeddings.weight"].dtype == np.float16


def test_nothing_is_written_over(source, tmp_path):
    encoder = mt.TextEncoder.from_pretrained(source)
    with pytest.raises(FileExistsError, match="exists: write to the name of a new directory"):
        encoder.save_pretrained(source)
    (tmp_path / "empty").mkdir()
    encoder.save_pretrained(tmp_path / "empty")
    (source / "config.json").rename(source / "gone.json")
    with pytest.raises(mt.ModelError, match=r"config\.json is missing"):
        encoder.save_pretrained(tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_directories_of_modules_without_files_are_made(source, tmp_path):
    with editing(source / "modules.json") as modules:
        modules.append({"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    mt.TextEncoder.from_pretrained(source).save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "2_Normalize").is_dir()
    assert mt.TextEncoder.from_pretrained(tmp_path / "out").pooling.normalize


# weights in several files, and the index that names them

INDEX = "model.safetensors.index.json"


@pytest.fixture
def shards(once, tmp_path):
    """A copy of a model in shards, which a test may break."""
    return shutil.copytree(once(write_model, "qwen3", files=(("max_shard_size", "30KB"),)), tmp_path / "shards")


def test_shards_are_read_as_one_file_and_saved_as_one(once, shards, tmp_path):
    whole = once(write_model, "qwen3")
    assert len(list(shards.glob("model-*.safetensors"))) > 2 and not (shards / "model.safetensors").exists()
    encoder, expected = mt.TextEncoder.from_pretrained(shards), mt.TextEncoder.from_pretrained(whole).model.arrays()
    encoder.save_pretrained(tmp_path / "new")
    assert (tmp_path / "new" / "model.safetensors").exists() and not (tmp_path / "new" / INDEX).exists()
    again = mt.TextEncoder.from_pretrained(tmp_path / "new")
    shutil.copyfile(whole / "model.safetensors", shards / "model.safetensors")
    (shards / INDEX).write_text("not read if there is one file")
    for each in (encoder, again, mt.TextEncoder.from_pretrained(shards)):
        for key, x in each.model.arrays().items():
            np.testing.assert_array_equal(x, expected[key])


def test_a_truncated_or_missing_shard(shards):
    path = min(shards.glob("model-*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    refused(shards, f"{path} is truncated or corrupt: ")
    path.unlink()
    refused(shards, f"{path} is missing: the directory holds 1_Pooling, config.json, model-00002-of-")


def test_an_index_that_names_a_wrong_file_or_none(shards):
    with editing(shards / INDEX) as index:
        places = index["weight_map"]
        first = min(places.values())
        assert places["norm.weight"] != first
        places["norm.weight"] = first
    refused(shards, f"{shards / first} has no norm.weight, although {shards / INDEX} places it there")
    with editing(shards / INDEX) as index:
        del index["weight_map"]["norm.weight"]
    refused(shards, f"{shards / INDEX} does not fit its config.json: norm.weight is missing (expected shape (32,))")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", " has no 'weight_map'"),
        ("[]", " holds a list; expected a dict"),
        ("{", " is not valid JSON: "),
        ('{"weight_map": 3}', ": weight_map is 3; expected dict"),
        ('{"weight_map": {"w": 3}}', ": weight_map places w in 3; expected the name of a file beside it"),
        ('{"weight_map": {"w": "../x"}}', ": weight_map places w in '../x'; expected the name of a file beside it"),
    ],
)
def test_a_broken_index(shards, content, message):
    (shards / INDEX).write_text(content)
    refused(shards, f"{shards / INDEX}{message}")


# gradients


@pytest.mark.parametrize("name", ["mpnet", "gemma3"])
def test_a_text_encoder_has_gradients_of_its_weights(once, name, rng):
    """With a relative bias that layers share; and with rotary tables, more norms and windows."""
    encoder, sample = mt.TextEncoder.from_pretrained(once(write_model, name), dtype="float64"), TEXTS[1:5]
    dense = Dense(rng.standard_normal((encoder.dim, 5)) * 0.1, rng.standard_normal(5), "tanh")
    encoder = replace(encoder, dense=(dense,))
    vectors, pullback = mha.vjp(encoder, sample)
    np.testing.assert_allclose(vectors, encoder.encode(sample), atol=1e-6)  # encode returns float32
    d = rng.standard_normal(vectors.shape)
    gradients, of_texts = pullback(d)
    assert of_texts is None
    arrays = gradients.model.arrays() | gradients.dense[0].arrays()
    assert set(arrays) == {"w", "b"} | {key for key in encoder.model.arrays() if ".rotary." not in key}
    directions = {key: rng.standard_normal(x.shape) for key, x in arrays.items()}

    def moved(step):
        remaining = iter(directions.values())  # in the order of arrays
        other = with_weights(encoder, lambda x: x + step * next(remaining))
        return np.sum(replace(other, dense=(dense.map(lambda x: x + step * next(remaining)),))(sample) * d)

    expected = sum(np.sum(x * directions[key]) for key, x in arrays.items())
    assert (moved(1e-6) - moved(-1e-6)) / 2e-6 == pytest.approx(expected, rel=1e-6)


def test_gradients_of_norms_of_heads_and_after_sublayers(once):
    encoder, sample = (
        mt.TextEncoder.from_pretrained(once(write_model, "gemma3"), dtype="float64"),
        ["a bird", "the tree at dawn"],
    )
    vectors, pullback = mha.vjp(encoder, sample)
    gradients, arrays = pullback(np.ones_like(vectors))[0].model.arrays(), encoder.model.arrays()
    rng = np.random.default_rng(0)
    for key in ("encoder.layers.1.attention.norm_q.weight", "encoder.layers.5.post_norm_1.weight", "words"):
        direction = rng.standard_normal(arrays[key].shape)

        def moved(step, key=key, direction=direction):
            return with_weights(encoder, lambda x: x + step * direction if x is arrays[key] else x)(sample).sum()

        expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
        np.testing.assert_allclose((gradients[key] * direction).sum(), expected, rtol=1e-6)


def test_wrt_freezes_all_but_the_last_layers(source):
    encoder = mt.TextEncoder.from_pretrained(source)
    encoder = replace(encoder, dense=(Dense(np.eye(32, dtype=np.float32), None),))
    last = f"model.encoder.layers.{len(encoder.model.encoder.layers) - 1}."
    vectors, pullback = mha.vjp(encoder, ["a text"], wrt=lambda name: name.startswith((last, "dense.")))
    gradients, _ = pullback(vectors)
    assert set(gradients.model.arrays()) == {name for name in encoder.model.arrays() if f"model.{name}".startswith(last)}
    assert set(gradients.dense[0].arrays()) == {"w"}
    assert encoder([]).shape == (0, encoder.dim)
