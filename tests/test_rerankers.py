"""Language models as rerankers, against sentence-transformers: chat templates, prompts, and the logits of answers."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM

from conftest import mha
from cross_models import close, rewrite
from modern_models import model, write_classifier
from reranker_models import FIRST_PART, FLAT, LIMIT, MODELS, STRUCTURED, differ, pairs, reranker, scores, theirs, trained
from small_models import SENTENCES, save, trained_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::mha_core.TruncationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return reranker(tmp_path_factory.mktemp("reranker"))


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
