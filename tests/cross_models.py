"""Directories of small cross-encoders, and the same by sentence-transformers."""

import json

import numpy as np
from sentence_transformers import CrossEncoder

from small_models import texts, write_model

LIMIT = 150  # tokens of a pair


def write(folder, kind="bert", num_labels=1, **settings):
    """Write a model whose tokenizer cuts pairs at LIMIT tokens, for us and for transformers."""
    write_model(folder, kind, num_labels=num_labels, **settings)
    rewrite(folder / "tokenizer_config.json", model_max_length=LIMIT)
    return folder


def rewrite(path, without=(), **changes):
    config = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in without}))


def theirs(folder):
    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


def some_pairs(rng):
    """Pairs of many lengths, none longer than LIMIT, some with empty texts."""
    some = texts(rng)[:6]
    chosen = [(a, b) for a in some for b in some]
    return [("a bird", ""), *chosen, ("the bird", "the bird"), ("the bird", "the bird")]


def close(found, expected, atol):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=atol)
