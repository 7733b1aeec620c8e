"""Directories of small rerankers that are language models, and their scores by sentence-transformers."""

import numpy as np
from modern_models import Wide, model
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from small_models import SENTENCES, save, trained_tokenizer
from tiny_models import edit
from transformers import AutoModelForCausalLM

import mha_core as mha
import mha_text as mt

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
    edit(folder / "tokenizer_config.json", model_max_length=LIMIT)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def reranker(folder, name="qwen3", template=FLAT, *, tied=False, false=True, processing=None, **settings):
    """Write a reranker as sentence-transformers does, from a language model."""
    source = language_model(folder / "source", name, template, tied=tied)
    transformer = Transformer(str(source), transformer_task="text-generation", processing_kwargs=processing)
    module = LogitScore(true_token_id=TRUE, false_token_id=FALSE if false else None)
    model = CrossEncoder(modules=[transformer, module], device="cpu", **settings)
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


def pairs():
    """Pairs of many lengths, some longer than LIMIT."""
    sample = ["", "a", *SENTENCES[:3], " ".join(SENTENCES[3:6]), "the bird"]
    return [(a, b) for a in sample for b in sample]


def reference(source):
    """Return the scores of sentence-transformers, which computes norms in float32 unless it is made to use float64."""
    cross = CrossEncoder(str(source), device="cpu", local_files_only=True, model_kwargs={"dtype": "float64"})

    def predict(pairs, **options):
        with Wide():
            return cross.predict(pairs, **options)

    return predict


def scores(source, backend="numpy", dtype="float64", sample=None):
    cross = mt.CrossEncoder.from_pretrained(source, backend=backend, dtype=dtype)
    return cross.backend.to_numpy(cross.predict(pairs() if sample is None else sample))


def trained(cross):
    """Return the model after a step of training."""

    def loss(cross):
        logits = cross(pairs()[8:20:3])
        return logits.__array_namespace__().sum(logits)

    optimiser = mha.AdamW(learning_rate=1e-2)
    _, gradients = mha.value_and_grad(loss)(cross)
    return optimiser.step(cross, gradients, optimiser.init(cross))[0]


def differ(scores):
    """Whether scores tell the pairs apart."""
    return len(np.unique(np.round(scores, 5))) > len(scores) / 4
