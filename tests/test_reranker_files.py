"""Language models as rerankers: pickled, trained and saved; files that cannot be used."""

import json
import pickle

import numpy as np
import pytest

from conftest import mha
from cross_models import close, rewrite
from reranker_models import language_model, pairs, reranker, theirs, trained

pytestmark = pytest.mark.filterwarnings("ignore::mha_core.TruncationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return reranker(tmp_path_factory.mktemp("reranker"))


# models as objects and as directories


def test_a_model_survives_pickling_with_its_prompts(tmp_path):
    source = reranker(tmp_path, prompts={"web": "the web "}, default_prompt_name="web")
    cross = mha.CrossEncoder.from_pretrained(source)
    again = pickle.loads(pickle.dumps(cross))
    other = mha.CrossEncoder(cross.model, cross.tokenizer, cross.activation, cross.backend, cross.device, cross.settings)
    for each in (again, pickle.loads(pickle.dumps(other))):
        close(each.predict(pairs()[8:12]), cross.predict(pairs()[8:12]), 0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_model_is_saved_for_us_and_for_sentence_transformers(tmp_path, tied):
    cross, some = mha.CrossEncoder.from_pretrained(reranker(tmp_path, tied=tied)), pairs()[8:20:3]
    assert ("w_true" in cross.model.arrays()) != tied
    after = trained(cross)
    after.save_pretrained(tmp_path / "trained")
    expected = after.predict(some)
    assert np.abs(expected - cross.predict(some)).max() > 1e-3
    close(mha.CrossEncoder.from_pretrained(tmp_path / "trained").predict(some), expected, 1e-6)
    close(theirs(tmp_path / "trained")(some), expected, 1e-5)


# what cannot be used


def broken(folder, tmp_path, name, **changes):
    import shutil

    target = tmp_path / "broken"
    shutil.copytree(folder, target)
    if isinstance(changes.get("text"), str | bytes):
        text = changes["text"]
        (target / name).write_bytes(text.encode() if isinstance(text, str) else text)
    else:
        rewrite(target / name, **changes)
    return target


CANNOT = {
    "a template without a place": (
        "chat_template.jinja",
        {"text": "{% for message in messages if message.role == 'query' %}{{ message.content }}{% endfor %}"},
        r"chat_template\.jinja: the chat template leaves out the document: it must show the messages with the roles 'query'",
    ),
    "a template for another chat": (
        "chat_template.jinja",
        {"text": "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"},
        "leaves out the query and the document",
    ),
    "a template that refuses": (
        "chat_template.jinja",
        {"text": "{{ raise_exception('only users') }}"},
        "the chat template cannot be used: TemplateError: only users",
    ),
    "no template": ("chat_template.jinja", {"text": "{% for %}"}, "the chat template cannot be used: TemplateSyntaxError"),
    "a block that is none": ("chat_template.jinja", {"text": "{% break %}"}, "the chat template cannot be used: SyntaxError"),
    "a template without an end": (
        "chat_template.jinja",
        {"text": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"},
        "the chat template cannot be used: RecursionError",
    ),
    "a token that is not there": (
        "chat_template.jinja",
        {"text": "{{ bos_token }}{{ messages }}"},
        "the chat template uses bos_token, but tokenizer_config.json lacks it: add it there",
    ),
    "no text": ("chat_template.jinja", {"text": b"\xff"}, "is not text in UTF-8: invalid start byte at byte 0"),
    "a format": (
        "sentence_bert_config.json",
        {"modality_config": {"message": {"format": "Flat"}}},
        "format is 'Flat'; supported: auto, structured, flat",
    ),
    "another side": ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side is 'left'; supported: right"),
    "no tokenizer": ("tokenizer.json", {"text": "{}"}, "cannot be read by tokenizers: Model missing"),
    "a folder elsewhere": (
        "modules.json",
        {"text": json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.LogitScore", "path": "../other"}])},
        r"path is '\.\./other'; expected a folder in that of the model",
    ),
    "a template that reaches for Python": (
        "chat_template.jinja",
        {"text": "{{ messages.__class__.__mro__ }}"},
        "the chat template cannot be used: SecurityError",
    ),
    "processing": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"text": {"max_length": 5}}},
        "processing_kwargs has text; supported: chat_template",
    ),
    "a length among the variables": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"chat_template": {"restore_suffix": False, "max_length": 5}}},
        "chat_template has max_length, restore_suffix; supported: variables of the template",
    ),
    "no dict": ("sentence_bert_config.json", {"modality_config": 3}, "modality_config is 3; expected dict"),
    "soft caps": ("config.json", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0; supported: None"),
    "another family": ("config.json", {"model_type": "bert"}, "model_type is 'bert'; supported: qwen3, gemma3_text"),
    "no such token": ("1_LogitScore/config.json", {"true_token_id": 10**6}, "but the score is that of token 1000000"),
    "no token": ("1_LogitScore/config.json", {"true_token_id": None}, "true_token_id is None; expected int"),
    "another input": (
        "1_LogitScore/config.json",
        {"module_input_name": "logits"},
        "module_input_name is 'logits'; supported: causal_logits",
    ),
    "another order": (
        "modules.json",
        {"text": json.dumps([{"type": "x.LogitScore"}, {"type": "x.Transformer"}])},
        "has the modules LogitScore, Transformer; expected Transformer, and LogitScore or nothing after it",
    ),
}


@pytest.mark.parametrize("what", CANNOT)
def test_files_that_cannot_be_used_are_named(folder, tmp_path, what):
    name, changes, message = CANNOT[what]
    with pytest.raises(mha.ModelError, match=message):
        mha.CrossEncoder.from_pretrained(broken(folder, tmp_path, name, **changes))


def test_a_template_that_is_asked_for_must_be_there(folder, tmp_path):
    target = broken(folder, tmp_path, "chat_template.jinja", text="")
    (target / "chat_template.jinja").unlink()
    with pytest.raises(mha.ModelError, match="asks for a chat template, but there is neither"):
        mha.CrossEncoder.from_pretrained(target)
    rewrite(target / "tokenizer_config.json", chat_template=[{"name": "tools", "template": "x"}])
    with pytest.raises(mha.ModelError, match="chat_template has tools; expected one with the name 'default'"):
        mha.CrossEncoder.from_pretrained(target)
    rewrite(target / "tokenizer_config.json", chat_template=3)
    with pytest.raises(mha.ModelError, match="chat_template is int; expected str"):
        mha.CrossEncoder.from_pretrained(target)


def test_a_language_model_without_its_answers_is_refused(tmp_path):
    source = language_model(tmp_path, "qwen3", None)
    with pytest.raises(mha.ModelError, match="has no token 'yes' or no token 'no', whose logits make the score"):
        mha.CrossEncoder.from_pretrained(source)


def test_an_encoder_does_not_take_a_prompt_of_the_whole_model():
    with pytest.raises(TypeError, match="prompt: give it to predict or rank, which take it for each call"):
        mha.CrossEncoder.from_pretrained("m", prompt="a")
