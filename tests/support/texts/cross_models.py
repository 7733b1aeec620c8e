"""Directories of small cross-encoders, and the same by sentence-transformers."""

import numpy as np
from sentence_transformers import CrossEncoder
from small_models import texts, write_model
from tiny_models import edit

LIMIT = 150  # tokens of a pair


def write(folder, kind="bert", num_labels=1, **settings):
    """Write a model whose tokenizer cuts pairs at LIMIT tokens, for us and for transformers."""
    write_model(folder, kind, num_labels=num_labels, **settings)
    edit(folder / "tokenizer_config.json", model_max_length=LIMIT)
    return folder


def reference(folder):
    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


def some_pairs(rng):
    """Pairs of many lengths, none longer than LIMIT, some with empty texts."""
    sample = texts(rng)[:6]
    chosen = [(a, b) for a in sample for b in sample]
    return [("a bird", ""), *chosen, ("the bird", "the bird"), ("the bird", "the bird")]


def close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=atol)
