"""The files of cross-encoders: activations, heads, and what cannot be used."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder

import mha_core.models.heads as heads
from conftest import mha
from cross_models import close, rewrite, some_pairs, theirs, write
from small_models import FAMILIES, write_model

each_family = pytest.mark.parametrize("kind", FAMILIES)


@pytest.fixture
def folder(tmp_path):
    """A function to the directory of a family's model with one label."""
    return lambda kind: write(tmp_path / kind, kind)


@pytest.fixture
def pairs(rng):
    return some_pairs(rng)


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "5.0.0"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
        },
    ],
)
def test_the_activation_of_config_json_is_that_of_sentence_transformers(tmp_path, pairs, changes):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", **changes)
    found = mha.CrossEncoder.from_pretrained(source, dtype="float64").predict(pairs)
    close(found, theirs(source).predict(pairs), 1e-6)


@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Sigmoid(), torch.nn.ReLU()])
def test_a_directory_written_by_sentence_transformers(folder, tmp_path, pairs, activation):
    model = CrossEncoder(str(folder("roberta")), device="cpu", activation_fn=activation)
    model.save_pretrained(str(tmp_path / "m"))
    assert (tmp_path / "m" / "modules.json").exists()
    found = mha.CrossEncoder.from_pretrained(tmp_path / "m", dtype="float64").predict(pairs)
    close(found, theirs(tmp_path / "m").predict(pairs), 1e-6)


@pytest.mark.parametrize("value", ["torch.nn.modules.activation.GELU", "mine.Sigmoid", "Sigmoid", 3])
def test_other_activations_are_refused_by_name(tmp_path, value):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", sentence_transformers={"activation_fn": value})
    with pytest.raises(mha.ModelError, match=rf"config.json: activation_fn is {value!r}; supported: torch.nn.Identity, "):
        mha.CrossEncoder.from_pretrained(source)


def test_a_limit_below_the_special_tokens_of_a_pair_is_refused(tmp_path):
    source = write(tmp_path / "m", "roberta")
    rewrite(source / "sentence_bert_config.json", max_seq_length=3)
    with pytest.raises(mha.ModelError, match="max_seq_length is 3; expected 4 to 300"):
        mha.CrossEncoder.from_pretrained(source)


def test_an_encoder_without_a_head_is_refused_with_the_class_to_use(tmp_path):
    source = write_model(tmp_path / "m", "bert")
    with pytest.raises(
        mha.ModelError, match=r"has no classifier\.weight: it is an encoder without a .*TextEncoder\.from_pretrained"
    ):
        mha.CrossEncoder.from_pretrained(source)


def test_a_text_encoder_reads_the_directory_of_a_cross_encoder(folder):
    assert mha.TextEncoder.from_pretrained(folder("bert")).encode(["a bird"]).shape == (1, 32)


def test_a_family_without_a_head_is_refused(tmp_path):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", model_type="t5")
    with pytest.raises(mha.ModelError, match="model_type is 't5'; supported: bert, roberta, "):
        mha.CrossEncoder.from_pretrained(source)


@each_family
def test_a_missing_weight_of_a_head_is_reported_by_name(tmp_path, kind):
    path = write(tmp_path / "m", kind) / "model.safetensors"
    weights = load_file(path)
    head = heads.HEADS[kind]
    for name in (f"{head.dense}.weight", f"{head.dense}.bias", f"{head.classifier}.bias"):
        save_file({each: x for each, x in weights.items() if each != name}, path)
        with pytest.raises(mha.ModelError, match=f"{name} is missing"):
            mha.CrossEncoder.from_pretrained(path.parent)


def test_labels_that_do_not_fit_are_refused(tmp_path):
    source = write(tmp_path / "m", num_labels=3)
    rewrite(source / "config.json", without=["id2label"])
    with pytest.raises(mha.ModelError, match=r"classifier\.weight has shape \(3, 32\), expected \(2, 32\)"):
        mha.CrossEncoder.from_pretrained(source)  # 2 is transformers' default
    rewrite(source / "config.json", num_labels=3)
    assert mha.CrossEncoder.from_pretrained(source).num_labels == 3


def test_an_unknown_module_is_refused_by_name(tmp_path):
    source = write(tmp_path / "m")
    (source / "modules.json").write_text(json.dumps([{"type": f"st.{name}"} for name in ("Transformer", "Dense")]))
    rewrite(source / "config_sentence_transformers.json", model_type="CrossEncoder")
    with pytest.raises(mha.ModelError, match=r"modules\.json: module type is 'Dense'; supported: Transformer, LogitScore"):
        mha.CrossEncoder.from_pretrained(source)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_texts_may_be_cut_on_the_left(tmp_path, kind):
    source = write(tmp_path / "m", kind)
    rewrite(source / "tokenizer_config.json", truncation_side="left")
    long = [("a bird " * 90, "the tree"), ("the tree", "a bird sings at dawn " * 40), ("a bird " * 60, "songs of birds " * 60)]
    with pytest.warns(mha.TruncationWarning):
        found = mha.CrossEncoder.from_pretrained(source, dtype="float64").predict(long)
    close(found, theirs(source).predict(long), 1e-6)
    rewrite(source / "tokenizer_config.json", truncation_side="middle")
    with pytest.raises(mha.ModelError, match=r"truncation_side is 'middle'; supported: right, left"):
        mha.CrossEncoder.from_pretrained(source)


# heads that no family above has


def test_a_head_may_have_a_norm_another_pooling_and_no_biases(tmp_path, monkeypatch, rng):
    source = write(tmp_path / "m", num_labels=2)
    head = heads.Head(
        "head.dense",
        "score",
        activation="head_activation",
        pooling="head_pooling",
        norm="head.norm",
        dense_bias="head_bias",
        norm_bias=False,
        classifier_bias=False,
    )
    monkeypatch.setitem(heads.HEADS, "bert", head)
    rewrite(source / "config.json", head_activation="relu", head_pooling="mean", head_bias=False)
    made = {"head.dense": rng.normal(size=(32, 32)), "score": rng.normal(size=(2, 32)), "head.norm": rng.normal(size=32)}
    weights = load_file(source / "model.safetensors")
    save_file(weights | {f"{name}.weight": x for name, x in made.items()}, source / "model.safetensors")
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    pair = ("a bird sings", "the tree")
    (tokens,), _ = model.tokenizer.pairs([pair])
    ids, types = np.asarray(tokens.ids), np.asarray(tokens.type_ids)
    x = model.model.text(ids, np.arange(len(ids)), token_type_ids=types).mean(axis=0)
    x = np.maximum(x @ made["head.dense"].T, 0)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12) * made["head.norm"]
    close(model(pair), x @ made["score"].T, 1e-10)
    rewrite(source / "config.json", head_pooling="max")
    with pytest.raises(mha.ModelError, match="head_pooling is 'max'; supported: cls, mean"):
        mha.CrossEncoder.from_pretrained(source)
    rewrite(source / "config.json", head_pooling="cls", head_bias=True)
    with pytest.raises(mha.ModelError, match=r"head\.dense\.bias is missing"):
        mha.CrossEncoder.from_pretrained(source)
    monkeypatch.setitem(heads.HEADS, "bert", replace(head, dense=None, norm=None))
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    close(model(pair), model.model.text(ids, np.arange(len(ids)), token_type_ids=types)[0] @ made["score"].T, 1e-10)
