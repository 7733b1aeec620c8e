"""Models of texts are pickled as the path they were read from, or as their arrays if they were changed."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from small_models import PAIRS
from written_texts import TEXTS

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
