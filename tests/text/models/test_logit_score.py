"""Language models as rerankers, against sentence-transformers: chat templates, prompts, and the logits of answers."""

import numpy as np
import pytest
from cross_models import FIRST_PART, FLAT, LIMIT, STRUCTURED, differ, expected_scores, judge, language_model, reranker, trained
from needs import Library
from safetensors.numpy import load_file, save_file
from small_models import PAIRS, SENTENCES, tokenizer_of, write_model
from tiny_models import close, edit

import mha_text as mt

pytestmark = pytest.mark.filterwarnings("ignore::mha_text.TruncationWarning")
tokenizers, torch = Library("tokenizers"), Library("torch")


def scores(source, backend="numpy", dtype="float64"):
    cross = mt.CrossEncoder.from_pretrained(source, backend=backend, dtype=dtype)
    return cross.backend.to_numpy(cross.predict(PAIRS))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen3 with windows"])
def test_scores_equal_those_of_sentence_transformers(tmp_path, name, tied):
    source = reranker(tmp_path, name, tied=tied)
    expected = judge(source)
    assert differ(expected)
    for backend in ("numpy", "torch", "array_api_strict"):
        close(scores(source, backend, "float32"), expected, 1e-5)


@pytest.mark.parametrize("template", [STRUCTURED, None])
def test_pairs_become_texts_by_the_template_or_without_one_by_the_tokenizer(tmp_path, template):
    assert differ(judge(reranker(tmp_path, template=template)))


@pytest.mark.parametrize("template", [FLAT, None])
def test_prompts_are_messages_of_the_system_or_stand_before_the_first_text(tmp_path, template):
    source = reranker(tmp_path, template=template, prompts={"web": "a web ", "other": "the tree "}, default_prompt_name="web")
    cross, sample = mt.CrossEncoder.from_pretrained(source, dtype="float64"), PAIRS[8:20:2]
    results = set()
    for options in ({}, {"prompt_name": "other"}, {"prompt": "at dawn "}, {"prompt": ""}):
        results.add(str(cross.predict(sample, **options)))
        close(cross.predict(sample, **options), expected_scores(source, sample, **options), 1e-6)
    assert len(results) == 4
    close(cross(sample, prompt_name="other"), cross.predict(sample, prompt_name="other", activation="identity"), 1e-6)
    query, documents = "the tree", ["a", "the bird", "at dawn", "songs"]
    ranked = [each.corpus_id for each in cross.rank(query, documents, prompt_name="other")]
    expected = expected_scores(source, [(query, each) for each in documents], prompt_name="other")
    assert ranked == np.argsort(-expected).tolist()
    with pytest.raises(ValueError, match="prompt_name is 'query'; the model has the prompts other, web"):
        cross.predict(sample, prompt_name="query")


def test_a_score_may_be_one_logit_and_have_another_activation(tmp_path):
    source = reranker(tmp_path, false=False, activation_fn=torch.nn.Identity())
    assert judge(source, atol=1e-5).max() > 1


def test_options_of_the_template_are_those_of_the_model(tmp_path):
    source = reranker(tmp_path, processing={"chat_template": {"add_generation_prompt": True}})
    expected = judge(source)
    edit(source / "sentence_bert_config.json", without=["processing_kwargs"])
    assert np.abs(scores(source) - expected).max() > 1e-3


def test_a_language_model_without_modules_answers_yes_or_no(tmp_path):
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_of("qwen3").to_str())
    tokenizer.add_tokens(["yes", "no"])
    language_model(tmp_path, tokenizer=tokenizer, vocab_size=tokenizer.get_vocab_size())
    judge(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(FLAT)
    with_template = judge(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": FIRST_PART}, {"name": "tools", "template": FLAT}]
    edit(tmp_path / "tokenizer_config.json", chat_template=named)
    judge(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(FIRST_PART)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "other.jinja").write_text("x")
    judge(tmp_path)
    assert np.abs(scores(tmp_path) - with_template).max() < 1e-6


@pytest.mark.parametrize("head", ["tied", "separate", "equal", "different"])
def test_a_reranker_is_trained_and_saved_with_its_head(tmp_path, head):
    """The head is that of the words, or it is stored and trained apart from them."""
    source = reranker(tmp_path, tied=head != "separate")
    if head in ("equal", "different"):
        path = source / "model.safetensors"
        weights = load_file(path)
        stored = weights["model.embed_tokens.weight"] * (1 if head == "equal" else 2)
        save_file(weights | {"lm_head.weight": stored}, path, metadata={"format": "pt"})
    expected, cross = judge(source), mt.CrossEncoder.from_pretrained(source)
    assert ("w_true" in cross.model.arrays()) == (head != "tied")
    after = trained(cross)
    after.save_pretrained(tmp_path / "trained")
    assert np.abs(judge(tmp_path / "trained") - expected).max() > 1e-3
    close(scores(tmp_path / "trained", dtype=None), after.predict(PAIRS), 1e-6)


def test_special_tokens_of_a_template_come_from_the_files_of_the_tokenizer_and_are_not_lower_cased(tmp_path):
    source = reranker(tmp_path, template=FLAT + "{{ pad_token }} {{ image_token }}")
    edit(source / "tokenizer_config.json", extra_special_tokens={"image_token": "[SEP]"})
    judge(source)
    edit(source / "special_tokens_map.json", pad_token={"content": "[CLS]"})
    edit(source / "sentence_bert_config.json", do_lower_case=True)
    judge(source)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_head_for_classification_passes_over_padding_at_the_end_of_a_text(tmp_path, name):
    write_model(tmp_path, name, num_labels=1)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A [PAD]", pair="$A [SEP] $B [PAD] [PAD]", special_tokens=[("[PAD]", 0), ("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert mt.CrossEncoder.from_pretrained(tmp_path).tokenizer.pairs([("a", "a")])[0][0].ids[-3:][1:] == [0, 0]
    for sample in ([("a bird", "the"), ("the", "a bird at dawn"), ("songs", "a")], [("", "")]):
        judge(tmp_path, sample)


def test_blocks_and_filters_of_transformers_are_known(tmp_path):
    json_of_a_message = "{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}"
    judge(reranker(tmp_path, template="{% generation %}" + FLAT + "{% endgeneration %}" + json_of_a_message))


def test_a_chat_that_is_cut_ends_as_its_template_does(once):
    cross = mt.CrossEncoder.from_pretrained(once(reranker))
    long = ("a bird", " ".join(SENTENCES[:8]))
    (short, cut), count = cross.tokenizer.pairs([("a", "b"), long])
    assert (count, len(cut.ids)) == (1, LIMIT)
    assert cross.tokenizer.tokens(short.ids[-4:]) == cross.tokenizer.tokens(cut.ids[-4:]) == ["[SEP]", "the", "a", ";"]
    with pytest.warns(mt.TruncationWarning, match="1 of 2 pairs are longer than 60 tokens"):
        cross.predict([("a", "b"), long])
