"""``mha generate``: what it prints, and its errors."""

import re

import pytest
from command import fails, run
from cross_models import FLAT
from small_models import LENGTH, model, save, tokenizer_of

import mha_text as mt

PROMPT = "the bird sings"


def write(folder):
    save(folder, model("llama", "AutoModelForCausalLM"), tokenizer_of("llama"))
    (folder / "chat_template.jinja").write_text(FLAT)
    return folder


@pytest.fixture
def generate(once):
    return ("generate", PROMPT, "--model", once(write), "--max-new-tokens", 12)


def test_it_continues_the_text_and_says_how_fast(generate, once):
    done = run(*generate)
    expected = mt.LanguageModel.from_pretrained(once(write)).generate(PROMPT, max_new_tokens=12)
    assert done.stdout == f"{PROMPT}{expected}\n"
    said = " ".join(done.stderr.split())
    assert re.fullmatch(
        r"\d+ tokens of the prompt, 12 new ones: the first piece after [\d.]+ s, then [\d.]+ tokens a second", said
    )


def test_options_are_those_of_stream(generate, once):
    options = (
        "--temperature",
        1.5,
        "--top-k",
        20,
        "--top-p",
        0.9,
        "--min-p",
        0.01,
        "--seed",
        3,
        "--stop",
        "x",
        "--dtype",
        "float64",
    )
    language_model = mt.LanguageModel.from_pretrained(once(write), dtype="float64")
    drawn = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 3, "stop": "x"}
    expected = language_model.generate(PROMPT, max_new_tokens=12, **drawn)
    assert run(*generate, *options).stdout == f"{PROMPT}{expected}\n"


def test_a_message_is_answered(generate, once):
    language_model = mt.LanguageModel.from_pretrained(once(write))
    expected = language_model.generate([{"role": "user", "content": PROMPT}], max_new_tokens=12)
    assert run(*generate, "--chat").stdout == f"{expected}\n"


def test_errors_are_one_line(generate):
    assert "top_k limits what is drawn, and temperature 0 draws nothing" in fails(1, *generate, "--top-k", 3)
    assert f"and max_new_tokens is {LENGTH}" in fails(1, *generate, "--max-new-tokens", LENGTH)
    assert "no directory" in fails(1, "generate", PROMPT, "--model", "no/such")
