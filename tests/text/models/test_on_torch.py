"""all-MiniLM-L6-v2 on torch: in float32 it equals NumPy, and in bfloat16 it is as close as eight bits of precision allow."""

import pytest
import torch

import mha_text as mt


@pytest.fixture(scope="module")
def texts(sentences):
    """Texts of 3 to 256 tokens, some of equal length."""
    return ["", "one word", "two words", *sentences[::12], " ".join(sentences[:8]), " ".join(sentences[8:30])]


@pytest.fixture(scope="module")
def vectors(minilm, texts):
    """The texts' vectors in float32."""
    with pytest.warns(mt.TruncationWarning, match="1 of"):
        return mt.TextEncoder.from_pretrained(minilm, backend="torch").encode(texts)


def test_float32_vectors_equal_those_of_numpy(minilm, texts, vectors):
    with pytest.warns(mt.TruncationWarning):
        expected = mt.TextEncoder.from_pretrained(minilm, backend="numpy").encode(texts)
    assert not vectors.requires_grad
    torch.testing.assert_close(vectors, torch.asarray(expected), rtol=0, atol=1e-6)


def test_bfloat16_vectors_are_close_in_direction(minilm, texts, vectors):
    encoder = mt.TextEncoder.from_pretrained(minilm, backend="torch", dtype="bfloat16")
    with pytest.warns(mt.TruncationWarning):
        narrow = encoder.encode(texts)
    assert narrow.dtype == torch.float32
    assert (narrow - vectors).abs().max() < 4e-3
    assert (narrow * vectors).sum(-1)[1:].min() > 0.9999  # the empty text has 0.99989
    torch.testing.assert_close(narrow.norm(dim=-1), torch.ones(len(texts)))
