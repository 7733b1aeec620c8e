"""Text encoders written by ``save_pretrained``, read back by us and by transformers; and their gradients."""

import json
from dataclasses import replace

import numpy as np
import pytest

from conftest import mha
from small_models import FAMILIES, reference, texts, write_model


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_changed_model_is_read_back_by_us_and_by_transformers(tmp_path, kind, rng):
    source = write_model(tmp_path / "source", kind, masked_lm=kind == "roberta")
    encoder = mha.TextEncoder.from_pretrained(source)
    changed = replace(encoder, model=encoder.model.map(lambda x: x + np.float32(0.125)))
    changed.save_pretrained(tmp_path / "new" / "model")
    some = texts(rng)[:4]
    again = mha.TextEncoder.from_pretrained(tmp_path / "new" / "model")
    np.testing.assert_array_equal(again.encode(some), changed.encode(some))
    expected = reference(tmp_path / "new" / "model")
    truths = [expected(ids)[0].mean(axis=0) for ids in again.tokenizer(some)[0]]
    np.testing.assert_allclose(again.encode(some), truths, rtol=0, atol=1e-5)
    assert np.abs(again.encode(some) - encoder.encode(some)).max() > 0.01


def test_weights_that_the_encoder_does_not_use_are_kept(tmp_path):
    from safetensors.numpy import load_file

    source = write_model(tmp_path / "source", "bert")
    mha.TextEncoder.from_pretrained(source).save_pretrained(tmp_path / "out")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert set(before) == set(after)
    assert any("pooler" in name for name in after)
    for name, x in before.items():
        np.testing.assert_allclose(after[name], x, rtol=1e-7)


def test_half_precision_stays_half(tmp_path):
    from safetensors.numpy import load_file

    source = write_model(tmp_path / "source", "bert")
    mha.TextEncoder.from_pretrained(source, dtype="float16").save_pretrained(tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["embeddings.word_embeddings.weight"].dtype == np.float16


def test_nothing_is_written_over(tmp_path):
    source = write_model(tmp_path / "source", "bert")
    encoder = mha.TextEncoder.from_pretrained(source)
    with pytest.raises(FileExistsError, match="exists: write to the name of a new directory"):
        encoder.save_pretrained(source)
    (tmp_path / "empty").mkdir()
    encoder.save_pretrained(tmp_path / "empty")
    (source / "config.json").rename(source / "gone.json")
    with pytest.raises(mha.ModelError, match=r"config\.json is missing"):
        encoder.save_pretrained(tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_directories_of_modules_without_files_are_made(tmp_path):
    source = write_model(tmp_path / "source", "bert")
    modules = json.loads((source / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (source / "modules.json").write_text(json.dumps(modules))
    mha.TextEncoder.from_pretrained(source).save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "2_Normalize").is_dir()
    assert mha.TextEncoder.from_pretrained(tmp_path / "out").pooling.normalize


def test_a_text_encoder_has_gradients_of_its_weights(tmp_path, rng):
    source = write_model(tmp_path / "source", "mpnet")  # with a relative bias that all layers share
    encoder, some = mha.TextEncoder.from_pretrained(source, dtype="float64"), texts(rng)[:3]
    vectors, pullback = mha.vjp(encoder, some)
    np.testing.assert_allclose(vectors, encoder.encode(some), atol=1e-6)  # encode returns float32
    d = rng.standard_normal(vectors.shape)
    gradients, of_texts = pullback(d)
    assert of_texts is None
    found = gradients.model.arrays()
    assert set(found) == set(encoder.model.arrays())
    directions = {name: rng.standard_normal(x.shape) for name, x in found.items()}

    def moved(step):
        named = iter(encoder.model.arrays().items())

        def other(x):
            name, _ = next(named)
            return x + step * directions[name]

        return np.sum(replace(encoder, model=encoder.model.map(other))(some) * d)

    expected = sum(np.sum(found[name] * directions[name]) for name in found)
    assert (moved(1e-6) - moved(-1e-6)) / 2e-6 == pytest.approx(expected, rel=1e-5)


def test_wrt_freezes_all_but_the_last_layer(tmp_path):
    encoder = mha.TextEncoder.from_pretrained(write_model(tmp_path / "source", "bert"))
    last = f"model.encoder.layers.{len(encoder.model.encoder.layers) - 1}."
    vectors, pullback = mha.vjp(encoder, ["a text"], wrt=lambda name: name.startswith(last))
    gradients, _ = pullback(vectors)
    assert set(gradients.model.arrays()) == {name for name in encoder.model.arrays() if f"model.{name}".startswith(last)}


def test_calling_an_encoder_refuses_one_string(tmp_path):
    encoder = mha.TextEncoder.from_pretrained(write_model(tmp_path / "source", "bert"))
    with pytest.raises(TypeError, match=r"texts is one str; expected a list of strings: write \[text\]"):
        encoder("a text")
    assert encoder([]).shape == (0, encoder.dim)
