"""Weights in several files, and the index that names them."""

import json
import shutil

import numpy as np
import pytest

from conftest import mha
from modern_models import write_modern

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The directories of one model, in one file and in shards."""
    made = tmp_path_factory.mktemp("models")
    return write_modern(made / "whole", "qwen3"), write_modern(made / "shards", "qwen3", max_shard_size="30KB")


@pytest.fixture
def shards(written, tmp_path):
    """A copy of the directory with shards, which a test may break."""
    return shutil.copytree(written[1], tmp_path / "shards")


def refused(folder, message):
    with pytest.raises(mha.ModelError) as caught:
        mha.TextEncoder.from_pretrained(folder)
    assert str(caught.value).startswith(message), str(caught.value)


def test_shards_are_read_as_one_file(written):
    whole, shards = (mha.TextEncoder.from_pretrained(folder, dtype="float64") for folder in written)
    assert len(list(written[1].glob("model-*.safetensors"))) > 2 and not (written[1] / "model.safetensors").exists()
    for key, x in whole.model.arrays().items():
        np.testing.assert_array_equal(shards.model.arrays()[key], x)


def test_a_model_in_shards_is_saved_as_one_file(written, tmp_path):
    encoder = mha.TextEncoder.from_pretrained(written[1])
    encoder.save_pretrained(tmp_path / "new")
    assert (tmp_path / "new" / "model.safetensors").exists() and not (tmp_path / "new" / INDEX).exists()
    again = mha.TextEncoder.from_pretrained(tmp_path / "new")
    for key, x in encoder.model.arrays().items():
        np.testing.assert_array_equal(again.model.arrays()[key], x)


def test_one_file_is_read_if_both_are_there(written, shards):
    shutil.copyfile(written[0] / "model.safetensors", shards / "model.safetensors")
    (shards / INDEX).write_text("not read")
    assert mha.TextEncoder.from_pretrained(shards).dim == 32


def test_a_missing_shard(shards):
    path = min(shards.glob("model-*.safetensors"))
    path.unlink()
    refused(shards, f"{path} is missing: the directory holds 1_Pooling, config.json, model-00002-of-")


def test_a_truncated_shard(shards):
    path = min(shards.glob("model-*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    refused(shards, f"{path} is truncated or corrupt: ")


def test_an_array_that_is_not_where_the_index_says(shards):
    path = shards / INDEX
    index = json.loads(path.read_text())
    first, last = min(index["weight_map"].values()), max(index["weight_map"].values())
    assert index["weight_map"]["norm.weight"] == last
    index["weight_map"]["norm.weight"] = first
    path.write_text(json.dumps(index))
    refused(shards, f"{shards / first} has no norm.weight, although {path} places it there")


def test_an_array_that_the_index_does_not_name(shards):
    path = shards / INDEX
    index = json.loads(path.read_text())
    del index["weight_map"]["norm.weight"]
    path.write_text(json.dumps(index))
    refused(shards, f"{path} does not fit its config.json: norm.weight is missing (expected shape (32,))")


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
