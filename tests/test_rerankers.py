"""Language models as rerankers, against sentence-transformers: chat templates, prompts, and the logits of answers."""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM

from conftest import mha
from cross_models import close, rewrite
from modern_models import Wide, model, write_classifier
from small_models import SENTENCES, save, trained_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::mha_core.TruncationWarning")
LIMIT = 60  # tokens of a pair
TRUE, FALSE = 31, 20  # ids of tokens
FLAT = """
{%- set system = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("judge") -%}
{{ system }} :
{%- for message in messages if message.role != "system" %}
 {{ message.role }} = {{ message.content | trim }} ;
{%- endfor %}
 {%- if add_generation_prompt %} answer{% endif %} [SEP] the a ;
"""
STRUCTURED = """
{%- for message in messages if message["role"] != "system" -%}
{%- for part in message["content"] if part["type"] == "text" %} {{ part.text }}{% endfor %} [SEP]
{%- endfor %} {{ pad_token }} the end
"""
FIRST_PART = FLAT.replace("message.content", "(message.content | first).text")  # nothing in it shows that content is a list
MODELS = ("qwen3", "gemma3", "qwen3 with windows")


def language_model(folder, name, template, *, tied=False, tokenizer=None):
    """Write a language model as transformers does."""
    causal = model(name, AutoModelForCausalLM, tie_word_embeddings=tied)
    save(folder, causal, tokenizer or trained_tokenizer("wordpiece"))
    rewrite(folder / "tokenizer_config.json", model_max_length=LIMIT)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def reranker(folder, name="qwen3", template=FLAT, *, tied=False, false=True, processing=None, **settings):
    """Write a reranker as sentence-transformers does, from a language model."""
    source = language_model(folder / "source", name, template, tied=tied)
    transformer = Transformer(str(source), transformer_task="text-generation", processing_kwargs=processing)
    module = LogitScore(true_token_id=TRUE, false_token_id=FALSE if false else None)
    CrossEncoder(modules=[transformer, module], device="cpu", **settings).save_pretrained(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return reranker(tmp_path_factory.mktemp("reranker"))


def pairs():
    """Pairs of many lengths, some longer than LIMIT."""
    some = ["", "a", *SENTENCES[:3], " ".join(SENTENCES[3:6]), "the bird"]
    return [(a, b) for a in some for b in some]


def theirs(source):
    """Return the scores of sentence-transformers, which computes norms in float32 unless it is made to use float64."""
    cross = CrossEncoder(str(source), device="cpu", local_files_only=True, model_kwargs={"dtype": "float64"})

    def predict(pairs, **options):
        with Wide():
            return cross.predict(pairs, **options)

    return predict


def scores(source, backend="numpy", dtype="float64", some=None):
    cross = mha.CrossEncoder.from_pretrained(source, backend=backend, dtype=dtype)
    return cross.backend.to_numpy(cross.predict(pairs() if some is None else some))


def trained(cross):
    """Return the model after a step of training."""

    def loss(cross):
        logits = cross(pairs()[8:20:3])
        return logits.__array_namespace__().sum(logits)

    optimiser = mha.AdamW(learning_rate=1e-2)
    _, gradients = mha.value_and_grad(loss)(cross)
    return optimiser.step(cross, gradients, optimiser.init(cross))[0]


def differ(found):
    """Whether scores tell the pairs apart."""
    return len(np.unique(np.round(found, 5))) > len(found) / 4


# scores


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_scores_equal_those_of_sentence_transformers(tmp_path, name, tied):
    source = reranker(tmp_path, name, tied=tied)
    expected = theirs(source)(pairs())
    assert differ(expected)
    close(scores(source), expected, 1e-6)
    for backend in ("numpy", "torch", "array_api_strict"):
        close(scores(source, backend, "float32"), expected, 1e-5)


@pytest.mark.parametrize("template", [FLAT, STRUCTURED, None])
def test_pairs_become_texts_by_the_template_or_without_one_by_the_tokenizer(tmp_path, template):
    source = reranker(tmp_path, template=template)
    expected = theirs(source)(pairs())
    assert differ(expected)
    close(scores(source), expected, 1e-6)


@pytest.mark.parametrize("template", [FLAT, None])
def test_prompts_are_messages_of_the_system_or_stand_before_the_first_text(tmp_path, template):
    source = reranker(tmp_path, template=template, prompts={"web": "a web ", "other": "the tree "}, default_prompt_name="web")
    expected, cross = theirs(source), mha.CrossEncoder.from_pretrained(source, dtype="float64")
    some = pairs()[8:20:2]
    found = {}
    for options in ({}, {"prompt_name": "other"}, {"prompt": "at dawn "}, {"prompt": ""}):
        found[str(options)] = cross.predict(some, **options)
        close(found[str(options)], expected(some, **options), 1e-6)
    assert len({str(each) for each in found.values()}) == 4
    close(cross(some, prompt_name="other"), cross.predict(some, prompt_name="other", activation="identity"), 1e-6)
    query, documents = "the tree", ["a", "the bird", "at dawn", "songs"]
    ranked = [each.corpus_id for each in cross.rank(query, documents, prompt_name="other")]
    assert ranked == np.argsort(-expected([(query, each) for each in documents], prompt_name="other")).tolist()
    with pytest.raises(ValueError, match="prompt_name is 'query'; the model has the prompts other, web"):
        cross.predict(some, prompt_name="query")


def test_a_score_may_be_one_logit_and_have_another_activation(tmp_path):
    import torch

    source = reranker(tmp_path, false=False, activation_fn=torch.nn.Identity())
    expected = theirs(source)(pairs())
    assert expected.max() > 1
    close(scores(source), expected, 1e-5)


def test_options_of_the_template_are_those_of_the_model(tmp_path):
    source = reranker(tmp_path, processing={"chat_template": {"add_generation_prompt": True}})
    expected = theirs(source)(pairs())
    close(scores(source), expected, 1e-6)
    rewrite(source / "sentence_bert_config.json", without=["processing_kwargs"])
    assert np.abs(scores(source) - expected).max() > 1e-3


def test_a_language_model_without_modules_answers_yes_or_no(tmp_path):
    tokenizer = Tokenizer.from_str(trained_tokenizer("wordpiece").to_str())
    tokenizer.add_tokens(["yes", "no"])
    causal = model("qwen3", AutoModelForCausalLM, vocab_size=tokenizer.get_vocab_size())
    save(tmp_path, causal, tokenizer)
    rewrite(tmp_path / "tokenizer_config.json", model_max_length=LIMIT)
    close(scores(tmp_path), theirs(tmp_path)(pairs()), 1e-6)
    (tmp_path / "chat_template.jinja").write_text(FLAT)
    with_template = theirs(tmp_path)(pairs())
    close(scores(tmp_path), with_template, 1e-6)
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": FIRST_PART}, {"name": "tools", "template": FLAT}]
    rewrite(tmp_path / "tokenizer_config.json", chat_template=named)
    close(scores(tmp_path), theirs(tmp_path)(pairs()), 1e-6)
    (tmp_path / "chat_template.jinja").write_text(FIRST_PART)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "other.jinja").write_text("x")
    close(scores(tmp_path), theirs(tmp_path)(pairs()), 1e-6)
    assert np.abs(scores(tmp_path) - with_template).max() < 1e-6


@pytest.mark.parametrize("differs", [True, False])
def test_a_head_that_is_stored_is_used_and_trained_apart_from_the_words(tmp_path, differs):
    source = reranker(tmp_path, tied=True)
    path = source / "model.safetensors"
    weights = load_file(path)
    head = weights["model.embed_tokens.weight"] * (2 if differs else 1)
    save_file(weights | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    close(scores(source), theirs(source)(pairs()), 1e-6)
    trained(mha.CrossEncoder.from_pretrained(source)).save_pretrained(tmp_path / "trained")
    close(scores(tmp_path / "trained"), theirs(tmp_path / "trained")(pairs()), 1e-6)


def test_a_tokenizer_that_lower_cases_leaves_the_tokens_of_the_template(tmp_path):
    source = reranker(tmp_path)
    rewrite(source / "sentence_bert_config.json", do_lower_case=True)
    close(scores(source), theirs(source)(pairs()), 1e-6)


def test_special_tokens_of_a_template_come_from_the_files_of_the_tokenizer(tmp_path):
    source = reranker(tmp_path, template=FLAT + "{{ pad_token }} {{ image_token }}")
    tokens = {"extra_special_tokens": {"image_token": "[SEP]"}}
    rewrite(source / "tokenizer_config.json", **tokens)
    close(scores(source), theirs(source)(pairs()), 1e-6)
    rewrite(source / "special_tokens_map.json", pad_token={"content": "[CLS]"})
    close(scores(source), theirs(source)(pairs()), 1e-6)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_head_for_classification_passes_over_padding_at_the_end_of_a_text(tmp_path, name):
    write_classifier(tmp_path, name)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [PAD]", pair="$A [SEP] $B [PAD] [PAD]", special_tokens=[("[PAD]", 0), ("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert mha.CrossEncoder.from_pretrained(tmp_path).tokenizer.pairs([("a", "a")])[0][0].ids[-3:][1:] == [0, 0]
    some = [("a bird", "the"), ("the", "a bird at dawn"), ("songs", "a")]
    close(scores(tmp_path, some=some), theirs(tmp_path)(some), 1e-6)
    close(mha.CrossEncoder.from_pretrained(tmp_path, dtype="float64").predict([("", "")]), theirs(tmp_path)([("", "")]), 1e-6)


def test_blocks_and_filters_of_transformers_are_known(tmp_path):
    json_of_a_message = "{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}"
    source = reranker(tmp_path, template="{% generation %}" + FLAT + "{% endgeneration %}" + json_of_a_message)
    close(scores(source), theirs(source)(pairs()), 1e-6)


def test_a_chat_that_is_cut_ends_as_its_template_does(folder):
    cross = mha.CrossEncoder.from_pretrained(folder)
    long = ("a bird", " ".join(SENTENCES[:8]))
    (short, cut), count = cross.tokenizer.pairs([("a", "b"), long])
    assert (count, len(cut.ids)) == (1, LIMIT)
    assert cross.tokenizer.tokens(short.ids[-4:]) == cross.tokenizer.tokens(cut.ids[-4:]) == ["[SEP]", "the", "a", ";"]
    with pytest.warns(mha.TruncationWarning, match="1 of 2 pairs are longer than 60 tokens"):
        cross.predict([("a", "b"), long])


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
