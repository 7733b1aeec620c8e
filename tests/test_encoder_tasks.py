"""Text encoders in tasks of other processes: pickled as their path, and their vectors of tokens."""

import dataclasses
import os
import pickle

import numpy as np
import pytest

from conftest import mha
from test_corpus import TEXTS


@pytest.fixture
def tiny(tiny_model):
    return mha.TextEncoder.from_pretrained(tiny_model, backend="numpy")


def test_an_encoder_is_pickled_as_its_path_and_read_once(tiny, tiny_model):
    pickled = pickle.dumps(tiny)
    assert len(pickled) < 500
    first, second = pickle.loads(pickled), pickle.loads(pickled)
    assert first is second
    np.testing.assert_array_equal(first.encode(TEXTS), tiny.encode(TEXTS))
    os.utime(tiny_model / "model.safetensors", (0, 0))
    assert pickle.loads(pickled) is not first, "the file has changed"


def test_a_relative_path_is_pickled_as_an_absolute_one(tiny_model, monkeypatch):
    monkeypatch.chdir(tiny_model.parent)
    pickled = pickle.dumps(mha.TextEncoder.from_pretrained(tiny_model.name))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).dim == 8


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_encoder_that_was_changed_is_pickled_with_its_arrays(tiny_model, backend):
    pytest.importorskip(backend)
    encoder = mha.TextEncoder.from_pretrained(tiny_model, backend=backend)
    changed = dataclasses.replace(encoder, model=encoder.model.map(lambda x: x * 0.5))
    found = pickle.loads(pickle.dumps(changed))
    assert found.backend is encoder.backend
    to_numpy = encoder.backend.to_numpy
    np.testing.assert_array_equal(to_numpy(found.encode(TEXTS)), to_numpy(changed.encode(TEXTS)))
    assert abs(to_numpy(found.encode(TEXTS)) - to_numpy(encoder.encode(TEXTS))).max() > 1e-3


def test_texts_that_are_tokenized_have_the_vectors_of_encode(tiny):
    ids, _ = tiny.tokenizer(TEXTS)
    np.testing.assert_array_equal(tiny.encode_ids(ids), tiny.encode(TEXTS))
    assert tiny.encode_ids([]).shape == (0, 8)


def test_the_bits_of_a_part_do_not_depend_on_the_number_of_threads(tmp_path, tiny):
    """One batch, of more rows than a thread takes at once."""
    ids, _ = tiny.tokenizer([" ".join(["a", "bird", "sings"] * 2)] * 100)
    numpy = tiny.backend.record
    found = []
    try:
        for count in (1, 2, 3):
            numpy.set_num_threads(count)
            found.append(tiny.encode_ids(ids).tobytes())
    finally:
        numpy.set_num_threads(None)
    assert len(set(found)) == 1
