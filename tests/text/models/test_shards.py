"""Weights in several files, and the index that names them."""

import shutil

import numpy as np
import pytest
from modern_models import write_modern
from tiny_models import editing

import mha_text as mt

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
    with pytest.raises(mt.ModelError) as caught:
        mt.TextEncoder.from_pretrained(folder)
    assert str(caught.value).startswith(message), str(caught.value)


def test_shards_are_read_as_one_file_and_saved_as_one(written, tmp_path):
    whole, shards = (mt.TextEncoder.from_pretrained(folder) for folder in written)
    assert len(list(written[1].glob("model-*.safetensors"))) > 2 and not (written[1] / "model.safetensors").exists()
    shards.save_pretrained(tmp_path / "new")
    assert (tmp_path / "new" / "model.safetensors").exists() and not (tmp_path / "new" / INDEX).exists()
    again = mt.TextEncoder.from_pretrained(tmp_path / "new")
    for key, x in whole.model.arrays().items():
        np.testing.assert_array_equal(shards.model.arrays()[key], x)
        np.testing.assert_array_equal(again.model.arrays()[key], x)


def test_one_file_is_read_if_both_are_there(written, shards):
    shutil.copyfile(written[0] / "model.safetensors", shards / "model.safetensors")
    (shards / INDEX).write_text("not read")
    assert mt.TextEncoder.from_pretrained(shards).dim == 32


def test_a_truncated_or_missing_shard(shards):
    path = min(shards.glob("model-*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    refused(shards, f"{path} is truncated or corrupt: ")
    path.unlink()
    refused(shards, f"{path} is missing: the directory holds 1_Pooling, config.json, model-00002-of-")


def test_an_array_that_is_not_where_the_index_says(shards):
    with editing(shards / INDEX) as index:
        places = index["weight_map"]
        first = min(places.values())
        assert places["norm.weight"] != first
        places["norm.weight"] = first
    refused(shards, f"{shards / first} has no norm.weight, although {shards / INDEX} places it there")


def test_an_array_that_the_index_does_not_name(shards):
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
