"""Models of texts are pickled as the path they were read from, or as their arrays if they were changed."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from small_models import MODELS, PAIRS, write_model
from written_texts import TEXTS

import mha_core as mha
import mha_text as mt
from mha_text.models.settings import Settings


def test_a_model_is_pickled_as_its_path_and_read_once(tiny, tiny_model):
    pickled = pickle.dumps(tiny)
    assert len(pickled) < 500
    first, second = pickle.loads(pickled), pickle.loads(pickled)
    assert first is second
    np.testing.assert_array_equal(first.encode(TEXTS), tiny.encode(TEXTS))
    os.utime(tiny_model / "model.safetensors", (0, 0))
    assert pickle.loads(pickled) is not first, "the file has changed"


def test_a_relative_path_is_pickled_as_an_absolute_one(tiny_model, monkeypatch):
    monkeypatch.chdir(tiny_model.parent)
    pickled = pickle.dumps(mt.TextEncoder.from_pretrained(tiny_model.name))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).dim == 8


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_model_that_was_changed_is_pickled_with_its_arrays_and_settings(tiny_model, backend):
    encoder = mt.TextEncoder.from_pretrained(tiny_model, backend=backend)
    changed = replace(encoder, model=encoder.model.map(lambda x: x * 0.5), settings=Settings({"web": "a "}))
    again = pickle.loads(pickle.dumps(changed))
    assert again.backend is encoder.backend and again.settings == changed.settings
    read, expected, before = (encoder.backend.to_numpy(each.encode(TEXTS)) for each in (again, changed, encoder))
    np.testing.assert_array_equal(read, expected)
    assert abs(read - before).max() > 1e-3


def test_a_cross_encoder_is_pickled_like_a_text_encoder(cross_folder):
    bert = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")
    pickled = pickle.dumps(bert)
    assert len(pickled) < 600
    assert pickle.loads(pickled) is pickle.loads(pickled)
    changed = replace(bert, model=bert.model.map(lambda x: x * np.float32(1.01)))
    for model in (bert, changed):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(PAIRS), model.predict(PAIRS))


# int8 weights


def rounded(w):
    """The numbers that the int8 weight of a linear map stands for; other arrays as they are."""
    if w.ndim != 2:
        return w
    quantized = mha.quantize_weight(w)
    return quantized.values * quantized.scale


def rms(x):
    return np.sqrt(np.mean(x * x))


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_quantized(once, name):
    folder = once(write_model, name)
    encoder = mt.TextEncoder.from_pretrained(folder)
    quantized = mt.TextEncoder.from_pretrained(folder, weights="int8")
    vectors, expected = quantized.encode(TEXTS, normalize=False), encoder.encode(TEXTS, normalize=False)
    np.testing.assert_array_equal(encoder.quantized().encode(TEXTS, normalize=False), vectors)
    of_rounded = replace(encoder, model=replace(encoder.model, encoder=encoder.model.encoder.map(rounded)))
    of_weights = rms(of_rounded.encode(TEXTS, normalize=False) - expected)
    assert of_weights < rms(vectors - expected) < 2 * of_weights, "rows are rounded as finely as weights"
    assert rms(vectors - expected) < 0.1 * rms(expected)
    layer = quantized.model.encoder.layers[-1]
    maps = (*(getattr(layer.attention, f"w_{part}") for part in "qkvo"), layer.feed_forward.w_1, layer.feed_forward.w_2)
    assert all(isinstance(w, mha.Int8Weight) for w in maps)


def test_a_quantized_model_is_pickled_as_its_path(tiny_model):
    quantized = mt.TextEncoder.from_pretrained(tiny_model, weights="int8")
    pickled = pickle.dumps(quantized)
    assert len(pickled) < 500
    again = pickle.loads(pickled)
    assert again is pickle.loads(pickled) and again is not pickle.loads(
        pickle.dumps(mt.TextEncoder.from_pretrained(tiny_model))
    )
    np.testing.assert_array_equal(again.encode(TEXTS), quantized.encode(TEXTS))
    of_arrays = pickle.loads(pickle.dumps(mt.TextEncoder.from_pretrained(tiny_model).quantized()))
    np.testing.assert_array_equal(of_arrays.encode(TEXTS), quantized.encode(TEXTS))


def test_a_cross_encoder_is_quantized(cross_folder):
    bert = mt.CrossEncoder.from_pretrained(cross_folder("bert"))
    scores = mt.CrossEncoder.from_pretrained(cross_folder("bert"), weights="int8").predict(PAIRS)
    assert 0 < np.abs(scores - bert.predict(PAIRS)).max() < 0.05
    np.testing.assert_array_equal(bert.quantized().predict(PAIRS), scores)


def test_what_int8_weights_do_not_do_is_said(tiny, tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"^weights is 'int4'; expected 'int8', or None for those of the model$"):
        mt.TextEncoder.from_pretrained(tiny_model, weights="int4")
    quantized = tiny.quantized()
    with pytest.raises(TypeError, match=r"the model has int8 weights, .*: save the model that was quantized"):
        quantized.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match="int8 weights are for inference"):
        quantized.vjp(TEXTS)
