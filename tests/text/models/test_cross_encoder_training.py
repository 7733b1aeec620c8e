"""Cross-encoders are trained, written and pickled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cross_models import close, reference
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import mha_core as mha
import mha_text as mt
import mha_text.models.heads as heads


@pytest.mark.parametrize("kind", ["bert", "electra", "mpnet"])
def test_gradients_equal_those_of_transformers(cross_folder, kind, pairs, rng):
    sample, source = pairs[::5], cross_folder(kind)
    model = mt.CrossEncoder.from_pretrained(source, dtype="float64")
    logits, pullback = mha.vjp(model, sample)
    d = rng.standard_normal(logits.shape)
    gradients, of_pairs = pullback(d)
    assert of_pairs is None
    arrays = gradients.model.arrays()
    assert set(arrays) == set(model.model.arrays())
    reference = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float64).eval()
    tokens = AutoTokenizer.from_pretrained(source)(sample, padding=True, return_tensors="pt")
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
        here = np.asarray(arrays[ours]).copy()
        if ours == "text.words":
            here[padding], there[padding] = 0, 0  # torch's embedding has no gradient there
        close(here, there, 1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_steps_of_an_optimiser_reduce_the_loss_of_a_ranking(cross_folder, backend):
    model = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend=backend)
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
def test_a_changed_model_is_read_back_by_us_and_by_sentence_transformers(cross_folder, kind, tmp_path, pairs):
    model = mt.CrossEncoder.from_pretrained(cross_folder(kind))
    changed = replace(model, model=model.model.map(lambda x: x + np.float32(0.01)))
    changed.save_pretrained(tmp_path / "out")
    expected = changed.predict(pairs)
    assert np.abs(expected - model.predict(pairs)).max() > 1e-3
    np.testing.assert_array_equal(mt.CrossEncoder.from_pretrained(tmp_path / "out").predict(pairs), expected)
    close(reference(tmp_path / "out").predict(pairs), expected, 1e-5)
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(load_file(cross_folder(kind) / "model.safetensors"))
