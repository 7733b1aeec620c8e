"""Corrupted files of models: each is read as if nothing had happened, or refused in one line that names the file."""

import pytest
from damaged_files import damaged_bytes, damaged_json, refusals

import mha_text as mt

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::mha_text.TruncationWarning")]
COUNTS = {"config.json": 250, "tokenizer.json": 300, "model.safetensors": 250}
COUNTS |= {"modules.json": 80, "1_Pooling/config.json": 80, "sentence_bert_config.json": 40}


@pytest.mark.parametrize(("file", "count"), COUNTS.items())
def test_a_model(tiny_model, rng, file, count):
    path = tiny_model / file
    good = path.read_bytes()

    def damaged():
        in_json = file.endswith("json") and rng.random() < 0.8
        return damaged_json(good.decode(), rng).encode() if in_json else damaged_bytes(good, rng)

    def encode():
        assert mt.TextEncoder.from_pretrained(tiny_model).encode(["a bird sings", ""]).shape[0] == 2

    errors = mt.ModelError, mt.ModelNotFound
    refused = refusals(path, str(tiny_model), (damaged() for _ in range(count)), encode, errors)
    assert count / 10 < refused < count + (count < 100), f"of {count} damaged files, {refused} were refused"
