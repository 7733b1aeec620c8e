"""Directories of small rerankers that are language models, and the scores of cross-encoders by sentence-transformers."""

import numpy as np
from needs import Library
from small_models import PAIRS, model, save, tokenizer_of, wide
from tiny_models import close

import mha_core as mha
import mha_text as mt

sentence_transformers = Library("sentence_transformers")

LIMIT = 60  # tokens of a pair as a chat: fewer than some of PAIRS have
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


def language_model(folder, name="qwen3", template=None, *, tokenizer=None, **settings):
    """Write a language model as transformers does."""
    causal = model(name, "AutoModelForCausalLM", **settings)
    save(folder, causal, tokenizer or tokenizer_of(name), model_max_length=LIMIT)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def reranker(folder, name="qwen3", template=FLAT, *, tied=False, false=True, processing=None, **settings):
    """Write a reranker as sentence-transformers does, from a language model."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    source = language_model(folder / "source", name, template, tie_word_embeddings=tied)
    transformer = Transformer(str(source), transformer_task="text-generation", processing_kwargs=processing)
    module = LogitScore(true_token_id=TRUE, false_token_id=FALSE if false else None)
    cross = sentence_transformers.CrossEncoder(modules=[transformer, module], device="cpu", **settings)
    cross.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


def reference(folder):
    """Return the cross-encoder in a directory, as sentence-transformers reads it, in float64."""
    with wide():
        options = {"device": "cpu", "local_files_only": True, "model_kwargs": {"dtype": "float64"}}
        return sentence_transformers.CrossEncoder(str(folder), **options)


def expected_scores(folder, pairs=PAIRS, **options):
    """Return the scores of sentence-transformers for the model in a directory."""
    cross = reference(folder)
    with wide():
        return cross.predict(pairs, **options)


def judge(source, pairs=PAIRS, atol=1e-6):
    """Compare scores in float64 with those of sentence-transformers, and return these."""
    expected = expected_scores(source, pairs)
    close(mt.CrossEncoder.from_pretrained(source, backend="numpy", dtype="float64").predict(pairs), expected, atol)
    return expected


def trained(cross):
    """Return the model after a step of training."""

    def loss(cross):
        logits = cross(PAIRS[8:20:3])
        return logits.__array_namespace__().sum(logits)

    optimiser = mha.AdamW(learning_rate=1e-2)
    _, gradients = mha.value_and_grad(loss)(cross)
    return optimiser.step(cross, gradients, optimiser.init(cross))[0]


def differ(scores):
    """Return whether scores tell the pairs apart."""
    return len(np.unique(np.round(scores, 5))) > len(scores) / 4
