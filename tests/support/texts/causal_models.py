"""Small language models of each family, and the likeliest tokens that they write."""

from small_models import SENTENCES, model, save, tokenizer_of

import mha_text as mt
from mha_text.models.generation import generated_tokens
from mha_text.models.sampling import Sampling

TEXT = " ".join(SENTENCES)[:160]
PROMPTS = ["a bird sings at dawn", TEXT, "the tree"]
NEW = 200
"""More tokens than any window here has."""


def write(folder, name, *, tied=False, template=None):
    """Write a language model as transformers does."""
    save(folder, model(name, "AutoModelForCausalLM", tie_word_embeddings=tied), tokenizer_of(name))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def read(folder, dtype="float64", **options):
    return mt.LanguageModel.from_pretrained(folder, dtype=dtype, **options)


def greedy(language_model, prompts, count=NEW):
    """Return the tokens that follow each prompt, and the ids of the prompts."""
    ids = [language_model.tokenizer([prompt])[0][0] for prompt in prompts]
    texts = [[] for _ in ids]
    for step in generated_tokens(language_model.model, language_model.backend, ids, Sampling(), (), count, lambda text: False):
        for text, token in step:
            texts[text].append(token)
    return texts, ids
