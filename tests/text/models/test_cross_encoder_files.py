"""The files of cross-encoders: activations, heads, and what cannot be used."""

import json
import shutil
from functools import partial

import pytest
import tiny_models
from cross_models import judge, sentence_transformers
from needs import Library
from safetensors.numpy import load_file, save_file
from small_models import FAMILIES, LENGTH, write_model
from tiny_models import edit

import mha_text as mt
import mha_text.models.heads as heads

torch = Library("torch")
refused = partial(tiny_models.refused, kind="CrossEncoder")
IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.fixture
def source(cross_folder, tmp_path):
    """A copy of a cross-encoder of BERT, which a test may break."""
    return shutil.copytree(cross_folder("bert"), tmp_path / "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "5.0.0"}},
        {"sbert_ce_default_activation_function": IDENTITY},
        {"sbert_ce_default_activation_function": IDENTITY, "sentence_transformers": {"activation_fn": SIGMOID}},
    ],
)
def test_the_activation_of_config_json_is_that_of_sentence_transformers(source, changes):
    edit(source / "config.json", **changes)
    judge(source)


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid", "ReLU"])
def test_a_directory_written_by_sentence_transformers(cross_folder, tmp_path, activation):
    function = getattr(torch.nn, activation)()
    model = sentence_transformers.CrossEncoder(str(cross_folder("roberta")), device="cpu", activation_fn=function)
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    assert (tmp_path / "m" / "modules.json").exists()
    judge(tmp_path / "m")


ACTIVATIONS = ("torch.nn.modules.activation.GELU", "mine.Sigmoid", "Sigmoid", 3)


@pytest.mark.parametrize(
    ("name", "file", "changes", "message"),
    [
        *(
            (
                "bert",
                "config",
                {"sentence_transformers": {"activation_fn": each}},
                f"activation_fn is {each!r}; supported: torch.",
            )
            for each in ACTIVATIONS
        ),
        ("roberta", "sentence_bert_config", {"max_seq_length": 3}, f"max_seq_length is 3; expected 4 to {LENGTH}"),
        ("bert", "config", {"model_type": "t5"}, "model_type is 't5'; supported: bert, roberta, "),
        ("bert", "tokenizer_config", {"truncation_side": "middle"}, "truncation_side is 'middle'; supported: right, left"),
        (
            "modernbert",
            "config",
            {"classifier_pooling": "late"},
            "classifier_pooling is 'late'; supported: cls, mean, lasttoken",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(tmp_path, name, file, changes, message):
    source = write_model(tmp_path / "m", name, num_labels=1)
    edit(source / f"{file}.json", **changes)
    refused(source, f"{file}.json: {message}")


def test_an_encoder_without_a_head_is_refused_with_the_class_to_use(once):
    message = (
        "has no classifier.weight: it is an encoder without a classification head; read it with TextEncoder.from_pretrained"
    )
    refused(once(write_model, "bert"), message)


def test_a_text_encoder_reads_the_directory_of_a_cross_encoder(cross_folder):
    assert mt.TextEncoder.from_pretrained(cross_folder("bert")).encode(["a bird"]).shape == (1, 32)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_weight_of_a_head_is_reported_by_name(tmp_path, name):
    path = write_model(tmp_path / "m", name, num_labels=1) / "model.safetensors"
    weights = load_file(path)
    head = heads.HEADS[name]
    for key in (f"{head.dense}.weight", f"{head.dense}.bias", f"{head.classifier}.bias"):
        save_file({each: x for each, x in weights.items() if each != key}, path)
        refused(path.parent, f"{key} is missing")


def test_labels_that_do_not_fit_are_refused(tmp_path):
    source = write_model(tmp_path / "m", "bert", num_labels=3)
    edit(source / "config.json", without=["id2label"])
    refused(source, "classifier.weight has shape (3, 32), expected (2, 32)")  # 2 is transformers' default
    edit(source / "config.json", num_labels=3)
    assert mt.CrossEncoder.from_pretrained(source).num_labels == 3


def test_an_unknown_module_is_refused_by_name(source):
    (source / "modules.json").write_text(json.dumps([{"type": f"st.{name}"} for name in ("Transformer", "Dense")]))
    edit(source / "config_sentence_transformers.json", model_type="CrossEncoder")
    refused(source, "modules.json: module type is 'Dense'; supported: Transformer, LogitScore")


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_texts_may_be_cut_on_the_left(tmp_path, name):
    source = write_model(tmp_path / "m", name, num_labels=1)
    edit(source / "tokenizer_config.json", truncation_side="left")
    long = [("a bird " * 90, "the tree"), ("the tree", "a bird sings at dawn " * 40), ("a bird " * 60, "songs of birds " * 60)]
    with pytest.warns(mt.TruncationWarning):
        judge(source, long)
