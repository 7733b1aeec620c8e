"""The files of cross-encoders: activations, heads, and what cannot be used."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from cross_models import close, reference, write
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder
from small_models import FAMILIES, write_model
from tiny_models import edit

import mha_text as mt
import mha_text.models.heads as heads

each_family = pytest.mark.parametrize("kind", FAMILIES)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


def refused(source, message):
    with pytest.raises(mt.ModelError, match=message):
        mt.CrossEncoder.from_pretrained(source)


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "5.0.0"}},
        {"sbert_ce_default_activation_function": IDENTITY},
        {"sbert_ce_default_activation_function": IDENTITY, "sentence_transformers": {"activation_fn": SIGMOID}},
    ],
)
def test_the_activation_of_config_json_is_that_of_sentence_transformers(tmp_path, pairs, changes):
    source = write(tmp_path / "m")
    edit(source / "config.json", **changes)
    scores = mt.CrossEncoder.from_pretrained(source, dtype="float64").predict(pairs)
    close(scores, reference(source).predict(pairs), 1e-6)


@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Sigmoid(), torch.nn.ReLU()])
def test_a_directory_written_by_sentence_transformers(cross_folder, tmp_path, pairs, activation):
    model = CrossEncoder(str(cross_folder("roberta")), device="cpu", activation_fn=activation)
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    assert (tmp_path / "m" / "modules.json").exists()
    scores = mt.CrossEncoder.from_pretrained(tmp_path / "m", dtype="float64").predict(pairs)
    close(scores, reference(tmp_path / "m").predict(pairs), 1e-6)


ACTIVATIONS = ("torch.nn.modules.activation.GELU", "mine.Sigmoid", "Sigmoid", 3)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "message"),
    [
        *(
            (
                "bert",
                "config",
                {"sentence_transformers": {"activation_fn": value}},
                f"activation_fn is {value!r}; supported: to",
            )
            for value in ACTIVATIONS
        ),
        ("roberta", "sentence_bert_config", {"max_seq_length": 3}, "max_seq_length is 3; expected 4 to 300"),
        ("bert", "config", {"model_type": "t5"}, "model_type is 't5'; supported: bert, roberta, "),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(tmp_path, kind, name, changes, message):
    source = write(tmp_path / "m", kind)
    edit(source / f"{name}.json", **changes)
    refused(source, rf"{name}\.json: {message}")


def test_an_encoder_without_a_head_is_refused_with_the_class_to_use(tmp_path):
    message = r"has no classifier\.weight: it is an encoder without a .*TextEncoder\.from_pretrained"
    refused(write_model(tmp_path / "m", "bert"), message)


def test_a_text_encoder_reads_the_directory_of_a_cross_encoder(cross_folder):
    assert mt.TextEncoder.from_pretrained(cross_folder("bert")).encode(["a bird"]).shape == (1, 32)


@each_family
def test_a_missing_weight_of_a_head_is_reported_by_name(tmp_path, kind):
    path = write(tmp_path / "m", kind) / "model.safetensors"
    weights = load_file(path)
    head = heads.HEADS[kind]
    for name in (f"{head.dense}.weight", f"{head.dense}.bias", f"{head.classifier}.bias"):
        save_file({each: x for each, x in weights.items() if each != name}, path)
        refused(path.parent, f"{name} is missing")


def test_labels_that_do_not_fit_are_refused(tmp_path):
    source = write(tmp_path / "m", num_labels=3)
    edit(source / "config.json", without=["id2label"])
    refused(source, r"classifier\.weight has shape \(3, 32\), expected \(2, 32\)")  # 2 is transformers' default
    edit(source / "config.json", num_labels=3)
    assert mt.CrossEncoder.from_pretrained(source).num_labels == 3


def test_an_unknown_module_is_refused_by_name(tmp_path):
    source = write(tmp_path / "m")
    (source / "modules.json").write_text(json.dumps([{"type": f"st.{name}"} for name in ("Transformer", "Dense")]))
    edit(source / "config_sentence_transformers.json", model_type="CrossEncoder")
    refused(source, r"modules\.json: module type is 'Dense'; supported: Transformer, LogitScore")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_texts_may_be_cut_on_the_left(tmp_path, kind):
    source = write(tmp_path / "m", kind)
    edit(source / "tokenizer_config.json", truncation_side="left")
    long = [("a bird " * 90, "the tree"), ("the tree", "a bird sings at dawn " * 40), ("a bird " * 60, "songs of birds " * 60)]
    with pytest.warns(mt.TruncationWarning):
        scores = mt.CrossEncoder.from_pretrained(source, dtype="float64").predict(long)
    close(scores, reference(source).predict(long), 1e-6)
    edit(source / "tokenizer_config.json", truncation_side="middle")
    refused(source, r"truncation_side is 'middle'; supported: right, left")


# heads that no family above has


def test_a_head_may_have_a_norm_another_pooling_and_no_biases(tmp_path, monkeypatch, rng):
    source = write(tmp_path / "m", num_labels=2)
    named = {"activation": "head_activation", "pooling": "head_pooling", "norm": "head.norm", "dense_bias": "head_bias"}
    head = heads.Head("head.dense", "score", **named, norm_bias=False, classifier_bias=False)
    monkeypatch.setitem(heads.HEADS, "bert", head)
    edit(source / "config.json", head_activation="relu", head_pooling="mean", head_bias=False)
    made = {"head.dense": rng.normal(size=(32, 32)), "score": rng.normal(size=(2, 32)), "head.norm": rng.normal(size=32)}
    weights = load_file(source / "model.safetensors")
    save_file(weights | {f"{name}.weight": x for name, x in made.items()}, source / "model.safetensors")
    model = mt.CrossEncoder.from_pretrained(source, dtype="float64")
    pair = ("a bird sings", "the tree")
    (tokens,), _ = model.tokenizer.pairs([pair])
    ids, types = np.asarray(tokens.ids), np.asarray(tokens.type_ids)
    x = model.model.text(ids, np.arange(len(ids)), token_type_ids=types).mean(axis=0)
    x = np.maximum(x @ made["head.dense"].T, 0)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12) * made["head.norm"]
    close(model(pair), x @ made["score"].T, 1e-10)
    edit(source / "config.json", head_pooling="max")
    refused(source, "head_pooling is 'max'; supported: cls, mean")
    edit(source / "config.json", head_pooling="cls", head_bias=True)
    refused(source, r"head\.dense\.bias is missing")
    monkeypatch.setitem(heads.HEADS, "bert", replace(head, dense=None, norm=None))
    model = mt.CrossEncoder.from_pretrained(source, dtype="float64")
    close(model(pair), model.model.text(ids, np.arange(len(ids)), token_type_ids=types)[0] @ made["score"].T, 1e-10)
