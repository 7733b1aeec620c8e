"""Language models as rerankers: files that cannot be used."""

import shutil
from functools import partial

import pytest
import tiny_models
from cross_models import language_model, reranker
from tiny_models import edit

from mha_text.models import chat

refused = partial(tiny_models.refused, kind="CrossEncoder")
pytestmark = pytest.mark.filterwarnings("ignore::mha_text.TruncationWarning")


@pytest.fixture
def copied(once, tmp_path):
    """A copy of a reranker, whose files a test may break."""
    return shutil.copytree(once(reranker), tmp_path / "copy")


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
    ("modules.json", MODULES, "path is '../other'; expected a folder in that of the model"),
    ("modules.json", '[{"type": "LogitScore"}, {"type": "Transformer"}]', "has the modules LogitScore, Transformer; expected"),
]


@pytest.mark.parametrize(("name", "text", "message"), TEXTS)
def test_files_that_cannot_be_used_are_named(copied, name, text, message):
    (copied / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(copied, str(copied / name), f" {message}")


UNKNOWN = {"restore_suffix": False, "max_length": 5}
SETTINGS = [
    ("sentence_bert_config", "modality_config", {"message": {"format": "Flat"}}, "format is 'Flat'; supported: auto, struct"),
    ("sentence_bert_config", "modality_config", 3, "modality_config is 3; expected dict"),
    ("sentence_bert_config", "processing_kwargs", {"text": {"max_length": 5}}, "has text; supported: chat_template"),
    ("sentence_bert_config", "processing_kwargs", {"chat_template": UNKNOWN}, "has max_length, restore_suffix; supported: var"),
    ("tokenizer_config", "truncation_side", "left", "truncation_side is 'left'; supported: right"),
    ("config", "final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; supported: None"),
    ("config", "model_type", "bert", "model_type is 'bert'; supported: qwen3, gemma3_text, llama, mistral"),
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
    refused(language_model(tmp_path), "has no token 'yes' or no token 'no', whose logits make the score")


def test_a_jinja2_whose_sandbox_is_not_safe_is_refused(copied, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.1.5")
    chat._environment.cache_clear()
    refused(
        copied, "ImportError: chat templates need a newer jinja2, whose sandbox is safe: pip install --upgrade 'jinja2>=3.1.6'"
    )
    chat._environment.cache_clear()
