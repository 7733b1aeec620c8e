"""Language models as rerankers: pickled, trained and saved; files that cannot be used."""

import pickle
import re
import shutil

import numpy as np
import pytest
from cross_models import close
from reranker_models import language_model, pairs, reference, reranker, trained
from tiny_models import edit

import mha_text as mt

pytestmark = pytest.mark.filterwarnings("ignore::mha_text.TruncationWarning")


# models as objects and as directories


def test_a_model_survives_pickling_with_its_prompts(tmp_path):
    source = reranker(tmp_path, prompts={"web": "the web "}, default_prompt_name="web")
    cross = mt.CrossEncoder.from_pretrained(source)
    again = pickle.loads(pickle.dumps(cross))
    other = mt.CrossEncoder(cross.model, cross.tokenizer, cross.activation, cross.backend, cross.device, cross.settings)
    for each in (again, pickle.loads(pickle.dumps(other))):
        close(each.predict(pairs()[8:12]), cross.predict(pairs()[8:12]), 0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_model_is_saved_for_us_and_for_sentence_transformers(tmp_path, tied):
    cross, sample = mt.CrossEncoder.from_pretrained(reranker(tmp_path, tied=tied)), pairs()[8:20:3]
    assert ("w_true" in cross.model.arrays()) != tied
    after = trained(cross)
    after.save_pretrained(tmp_path / "trained")
    expected = after.predict(sample)
    assert np.abs(expected - cross.predict(sample)).max() > 1e-3
    close(mt.CrossEncoder.from_pretrained(tmp_path / "trained").predict(sample), expected, 1e-6)
    close(reference(tmp_path / "trained")(sample), expected, 1e-5)


# what cannot be used


@pytest.fixture
def copied(once, tmp_path):
    """A copy of a reranker, whose files a test may break."""
    return shutil.copytree(once(reranker), tmp_path / "copy")


def refused(folder, message):
    with pytest.raises(mt.ModelError, match=message):
        mt.CrossEncoder.from_pretrained(folder)


ONLY = "{{% for message in messages if message.role == '{}' %}}{{{{ message.content }}}}{{% endfor %}}"
MODULES = '[{"type": "x.Transformer", "path": ""}, {"type": "x.LogitScore", "path": "../other"}]'
TEXTS = [
    ("chat_template.jinja", ONLY.format("query"), "leaves out the document: it must show the messages with the roles 'query'"),
    ("chat_template.jinja", ONLY.format("user"), "leaves out the query and the document"),
    ("chat_template.jinja", "{{ raise_exception('only users') }}", "template cannot be used: TemplateError: only users"),
    ("chat_template.jinja", "{% for %}", "the chat template cannot be used: TemplateSyntaxError"),
    ("chat_template.jinja", "{% break %}", "the chat template cannot be used: SyntaxError"),
    ("chat_template.jinja", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "template cannot be used: RecursionError"),
    ("chat_template.jinja", "{{ messages.__class__.__mro__ }}", "the chat template cannot be used: SecurityError"),
    (
        "chat_template.jinja",
        "{{ bos_token }}{{ messages }}",
        "uses bos_token, but tokenizer_config.json lacks it: add it there",
    ),
    ("chat_template.jinja", b"\xff", "is not text in UTF-8: invalid start byte at byte 0"),
    ("tokenizer.json", "{}", "cannot be read by tokenizers: Model missing"),
    ("modules.json", MODULES, r"path is '\.\./other'; expected a folder in that of the model"),
    (
        "modules.json",
        '[{"type": "x.LogitScore"}, {"type": "x.Transformer"}]',
        "has the modules LogitScore, Transformer; expected",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), TEXTS)
def test_files_that_cannot_be_used_are_named(copied, name, text, message):
    (copied / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(copied, f"{re.escape(str(copied / name))}.* {message}")


UNKNOWN = {"restore_suffix": False, "max_length": 5}
SETTINGS = [
    ("sentence_bert_config", "modality_config", {"message": {"format": "Flat"}}, "format is 'Flat'; supported: auto, struct"),
    ("sentence_bert_config", "modality_config", 3, "modality_config is 3; expected dict"),
    ("sentence_bert_config", "processing_kwargs", {"text": {"max_length": 5}}, "has text; supported: chat_template"),
    ("sentence_bert_config", "processing_kwargs", {"chat_template": UNKNOWN}, "has max_length, restore_suffix; supported: var"),
    ("tokenizer_config", "truncation_side", "left", "truncation_side is 'left'; supported: right"),
    ("config", "final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; supported: None"),
    ("config", "model_type", "bert", "model_type is 'bert'; supported: qwen3, gemma3_text"),
    ("1_LogitScore/config", "true_token_id", 10**6, "but the score is that of token 1000000"),
    ("1_LogitScore/config", "true_token_id", None, "true_token_id is None; expected int"),
    ("1_LogitScore/config", "module_input_name", "logits", "module_input_name is 'logits'; supported: causal_logits"),
]


@pytest.mark.parametrize(("name", "field", "value", "message"), SETTINGS)
def test_settings_that_cannot_be_used_are_named(copied, name, field, value, message):
    edit(copied / f"{name}.json", **{field: value})
    refused(copied, message)


def test_a_template_that_is_asked_for_must_be_there(copied):
    (copied / "chat_template.jinja").unlink()
    refused(copied, "asks for a chat template, but there is neither")
    edit(copied / "tokenizer_config.json", chat_template=[{"name": "tools", "template": "x"}])
    refused(copied, "chat_template has tools; expected one with the name 'default'")
    edit(copied / "tokenizer_config.json", chat_template=3)
    refused(copied, "chat_template is int; expected str")


def test_a_language_model_without_its_answers_is_refused(tmp_path):
    message = "has no token 'yes' or no token 'no', whose logits make the score"
    refused(language_model(tmp_path, "qwen3", None), message)
