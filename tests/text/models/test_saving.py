"""Text encoders written by ``save_pretrained``, read back by us and by transformers; and their gradients."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_models import FAMILIES, reference, texts, write_model
from tiny_models import editing

import mha_core as mha
import mha_text as mt


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_changed_model_is_read_back_by_us_and_by_transformers(tmp_path, kind, rng):
    source = write_model(tmp_path / "source", kind, masked_lm=kind == "roberta")
    encoder = mt.TextEncoder.from_pretrained(source)
    changed = replace(encoder, model=encoder.model.map(lambda x: x + np.float32(0.125)))
    changed.save_pretrained(tmp_path / "new" / "model")
    sample = texts(rng)[:4]
    again = mt.TextEncoder.from_pretrained(tmp_path / "new" / "model")
    np.testing.assert_array_equal(again.encode(sample), changed.encode(sample))
    expected = reference(tmp_path / "new" / "model")
    truths = [expected(ids)[0].mean(axis=0) for ids in again.tokenizer(sample)[0]]
    np.testing.assert_allclose(again.encode(sample), truths, rtol=0, atol=1e-5)
    assert np.abs(again.encode(sample) - encoder.encode(sample)).max() > 0.01


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


def test_a_text_encoder_has_gradients_of_its_weights(tmp_path, rng):
    source = write_model(tmp_path / "source", "mpnet")  # with a relative bias that all layers share
    encoder, sample = mt.TextEncoder.from_pretrained(source, dtype="float64"), texts(rng)[:3]
    vectors, pullback = mha.vjp(encoder, sample)
    np.testing.assert_allclose(vectors, encoder.encode(sample), atol=1e-6)  # encode returns float32
    d = rng.standard_normal(vectors.shape)
    gradients, of_texts = pullback(d)
    assert of_texts is None
    arrays = gradients.model.arrays()
    assert set(arrays) == set(encoder.model.arrays())
    directions = {name: rng.standard_normal(x.shape) for name, x in arrays.items()}

    def moved(step):
        remaining = iter(directions.values())  # in the order of arrays
        return np.sum(replace(encoder, model=encoder.model.map(lambda x: x + step * next(remaining)))(sample) * d)

    expected = sum(np.sum(x * directions[name]) for name, x in arrays.items())
    assert (moved(1e-6) - moved(-1e-6)) / 2e-6 == pytest.approx(expected, rel=1e-5)


def test_wrt_freezes_all_but_the_last_layer(source):
    encoder = mt.TextEncoder.from_pretrained(source)
    last = f"model.encoder.layers.{len(encoder.model.encoder.layers) - 1}."
    vectors, pullback = mha.vjp(encoder, ["a text"], wrt=lambda name: name.startswith(last))
    gradients, _ = pullback(vectors)
    assert set(gradients.model.arrays()) == {name for name in encoder.model.arrays() if f"model.{name}".startswith(last)}
    assert encoder([]).shape == (0, encoder.dim)
