"""Cross-encoders are trained, written and pickled."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import mha_core.models.heads as heads
from conftest import mha
from cross_models import close, some_pairs, theirs, write


@pytest.fixture
def folder(tmp_path):
    """A function to the directory of a family's model with one label."""
    return lambda kind: write(tmp_path / kind, kind)


@pytest.fixture
def pairs(rng):
    return some_pairs(rng)


@pytest.fixture
def bert(folder):
    return mha.CrossEncoder.from_pretrained(folder("bert"), backend="numpy")


@pytest.mark.parametrize("kind", ["bert", "electra", "mpnet"])
def test_gradients_equal_those_of_transformers(folder, kind, pairs, rng):
    some, source = pairs[::5], folder(kind)
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    logits, pullback = mha.vjp(model, some)
    d = rng.standard_normal(logits.shape)
    gradients, of_pairs = pullback(d)
    assert of_pairs is None
    found = gradients.model.arrays()
    assert set(found) == set(model.model.arrays())
    reference = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float64).eval()
    tokens = AutoTokenizer.from_pretrained(source)(some, padding=True, return_tensors="pt")
    reference(**tokens).logits[:, 0].backward(torch.asarray(d))
    expected = {name: x.grad for name, x in reference.named_parameters() if x.grad is not None}
    named = {
        "text.words": "embeddings.word_embeddings.weight",
        "head.w": f"{heads.HEADS[kind].dense}.weight",
        "head.w_out": f"{heads.HEADS[kind].classifier}.weight",
    }
    if kind != "mpnet":
        named["text.token_types"] = "embeddings.token_type_embeddings.weight"
    for ours, end in named.items():
        (there,) = (x.numpy() for name, x in expected.items() if name.endswith(end))
        there = there.T if ours.startswith("head") else there
        padding = {"bert": 0, "electra": 0, "mpnet": 1}[kind]
        here = np.asarray(found[ours]).copy()
        if ours == "text.words":
            here[padding], there[padding] = 0, 0  # torch's embedding has no gradient there
        close(here, there, 1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_steps_of_an_optimiser_reduce_the_loss_of_a_ranking(folder, backend):
    model = mha.CrossEncoder.from_pretrained(folder("bert"), backend=backend)
    pairs, right = [("a bird", "sings"), ("a bird", "at dawn"), ("a bird", "the tree")], model.backend.xp.asarray([2])
    optimiser = mha.AdamW(learning_rate=1e-3)
    state, losses = optimiser.init(model), []
    for _ in range(4):
        loss, gradients = mha.value_and_grad(lambda model: mha.cross_entropy(model(pairs)[None, :], right))(model)
        model, state = optimiser.step(model, gradients, state)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "xlm-roberta"])
def test_a_changed_model_is_read_back_by_us_and_by_sentence_transformers(folder, kind, tmp_path, pairs):
    model = mha.CrossEncoder.from_pretrained(folder(kind))
    changed = replace(model, model=model.model.map(lambda x: x + np.float32(0.01)))
    changed.save_pretrained(tmp_path / "out")
    expected = changed.predict(pairs)
    assert np.abs(expected - model.predict(pairs)).max() > 1e-3
    np.testing.assert_array_equal(mha.CrossEncoder.from_pretrained(tmp_path / "out").predict(pairs), expected)
    close(theirs(tmp_path / "out").predict(pairs), expected, 1e-5)
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(load_file(folder(kind) / "model.safetensors"))


def test_pickling_stores_the_path_or_the_changed_arrays(bert, pairs):
    pickled = pickle.dumps(bert)
    assert len(pickled) < 600
    first, second = pickle.loads(pickled), pickle.loads(pickled)
    assert first is second
    changed = replace(bert, model=bert.model.map(lambda x: x * np.float32(1.01)))
    for model in (bert, changed):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(pairs), model.predict(pairs))
