"""CrossEncoder of today's families against transformers: heads of ModernBERT, NomicBERT, GTE and Jina, and of decoders."""

import numpy as np
import pytest
from modern_models import logits, write_classifier
from tiny_models import edit

import mha_text as mt

PAIRS = [("", ""), ("a", "bird"), ("the tree sings at dawn", "a bird"), ("birds", "they sleep on the wing, and never rest")]
OLDER = ["modernbert", "modernbert with biases", "nomic", "gte", "gte without token types", "jina 3"]
each = pytest.mark.parametrize("name", [*OLDER, "eurobert", "eurobert, mean", "eurobert, first", "qwen3", "gemma3"])


@pytest.fixture
def directory(tmp_path, name):
    return write_classifier(tmp_path / "model", name)


@each
def test_logits_are_those_of_transformers(directory, name):
    model = mt.CrossEncoder.from_pretrained(directory, backend="numpy", dtype="float64")
    expected = np.concatenate([logits(name, pair.ids) for pair in model.tokenizer.pairs(PAIRS)[0]])
    assert np.ptp(expected) > 1e-3, "pairs differ"
    assert model(PAIRS).dtype == np.float64
    np.testing.assert_allclose(model(PAIRS), expected, rtol=0, atol=1e-10 * abs(expected).max())
    np.testing.assert_allclose(model.predict(PAIRS, activation="identity"), expected, rtol=1e-6, atol=1e-6)


@each
def test_a_model_that_is_saved_scores_as_before(directory, name, tmp_path):
    model = mt.CrossEncoder.from_pretrained(directory, backend="numpy")
    model.save_pretrained(tmp_path / "again")
    scores = mt.CrossEncoder.from_pretrained(tmp_path / "again", backend="numpy").predict(PAIRS)
    # Gemma's weights of norms are stored less 1, which rounds them once more; all others are stored as they are
    np.testing.assert_allclose(scores, model.predict(PAIRS), rtol=0, atol=1e-5 if name == "gemma3" else 0)
    assert np.ptp(scores) > 1e-3


@pytest.mark.parametrize("name", ["modernbert"])
def test_a_pooling_of_the_configuration_that_is_not_known_is_refused(directory, name):
    edit(directory / "config.json", classifier_pooling="late")
    with pytest.raises(mt.ModelError, match=r"classifier_pooling is 'late'; supported: cls, mean, lasttoken"):
        mt.CrossEncoder.from_pretrained(directory)
