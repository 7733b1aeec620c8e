"""Language models against transformers: logits, greedy texts, batches, prefill in parts, likelihoods, and what they refuse."""

import json
import pickle

import numpy as np
import pytest
from causal_models import NEW, PROMPTS, TEXT, greedy, read, write
from cross_models import FLAT, STRUCTURED
from needs import Library
from small_models import LENGTH, loaded, wide, write_model
from tiny_models import close, edit, refused

import mha_core as mha
from mha_text.models import generation
from mha_text.models.generation import generated_tokens
from mha_text.models.sampling import Sampling

torch, transformers = Library("torch"), Library("transformers")

NAMES = ("qwen3", "qwen3 with windows", "llama", "llama 3", "mistral with windows", "mistral without windows", "gemma3")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(once, name, tied):
    folder = once(write, name, tied=tied)
    language_model, truth = read(folder), loaded(folder, "AutoModelForCausalLM")
    tokens, ids = greedy(language_model, PROMPTS)
    for prompt, mine, text in zip(ids, tokens, PROMPTS, strict=True):
        with torch.no_grad(), wide():
            given = torch.tensor([prompt])
            options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            expected = truth.generate(given, attention_mask=torch.ones_like(given), **options)[0, len(prompt) :].tolist()
            close(language_model.logits(text), truth(given).logits[0], 1e-10)
        assert mine == expected
    assert tied or len({token for mine in tokens for token in mine}) > 20  # tied to random words, a model repeats the last one


@pytest.mark.parametrize("backend", ["torch", "array_api_strict"])
def test_another_backend_writes_the_same(once, backend):
    folder = once(write, "gemma3")
    there, here = read(folder, backend=backend), read(folder, backend="numpy")
    assert greedy(there, PROMPTS, 30) == greedy(here, PROMPTS, 30)
    drawn = {"max_new_tokens": 30, "temperature": 1.2, "top_p": 0.9, "seed": 4}
    assert there.generate(PROMPTS, **drawn) == here.generate(PROMPTS, **drawn)
    close(there.backend.to_numpy(there.score(PROMPTS)), here.score(PROMPTS), 1e-4)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_half_precision_writes_the_likeliest_tokens(once, backend):
    language_model = read(once(write, "qwen3"), "bfloat16", backend=backend)
    assert "bfloat16" in str(language_model.model.text.words.dtype)
    (tokens,), (prompt,) = greedy(language_model, [TEXT], 5)
    states = language_model.model.states([[*prompt, *tokens]])
    logits = np.asarray(language_model.model.logits(states).tolist())[len(prompt) - 1 : -1]
    chosen = logits[np.arange(5), tokens]
    assert (chosen >= logits.max(axis=1) - 2**-4 * np.abs(logits).max()).all()  # states of one token round otherwise
    assert language_model.generate(TEXT, max_new_tokens=5, temperature=0.5)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_prompts_that_are_read_in_parts_go_on_alike(once, monkeypatch, name):
    language_model = read(once(write, name))
    whole, _ = greedy(language_model, PROMPTS, 40)
    alone = [greedy(language_model, [prompt], 40)[0][0] for prompt in PROMPTS]
    monkeypatch.setattr(generation, "PREFILL", 7)
    assert greedy(language_model, PROMPTS, 40)[0] == whole == alone


def test_texts_that_end_leave_the_batch(once):
    """Each prompt ends at another step; what remains is as it is alone."""
    language_model = read(once(write, "llama"))
    tokens, _ = greedy(language_model, PROMPTS, 40)
    endings = {tokens[0][7], tokens[2][19]}
    ids = [language_model.tokenizer([prompt])[0][0] for prompt in PROMPTS]
    written, sizes = [[] for _ in ids], []
    for step in generated_tokens(
        language_model.model, language_model.backend, ids, Sampling(), endings, 40, lambda text: False
    ):
        sizes.append(len(step))
        for text, token in step:
            written[text].append(token)
    for mine, every in zip(written, tokens, strict=True):
        until = min((every.index(token) for token in endings if token in every), default=40)
        assert mine == every[:until]
    assert min(sizes) < 3


def test_likelihoods_are_sums_of_log_probabilities(once, monkeypatch):
    folder = once(write, "qwen3")
    language_model, truth = read(folder), loaded(folder, "AutoModelForCausalLM")
    expected = []
    for text in PROMPTS:
        ids = torch.tensor(language_model.tokenizer([text])[0])
        with torch.no_grad(), wide():
            logs = torch.log_softmax(truth(ids).logits[0], dim=-1)
        expected.append(float(logs[:-1].gather(1, ids[0, 1:, None]).sum()))
    close(language_model.score(PROMPTS), expected, 1e-4)
    monkeypatch.setattr("mha_text.models.language_model._ROWS", 5)
    close(language_model.score(PROMPTS), expected, 1e-4)
    assert language_model.score([]).shape == (0,)


def test_the_loss_is_the_mean_of_likelihoods_and_has_gradients(once):
    language_model = read(once(write, "llama"))
    ids = [*language_model.tokenizer(PROMPTS)[0], [5]]
    value, gradients = mha.value_and_grad(lambda each: each.loss(ids))(language_model)
    count = sum(len(text) - 1 for text in ids)
    close(float(value), -float(np.sum(language_model.score(PROMPTS))) / count, 1e-5)
    optimiser = mha.SGD(learning_rate=0.01)
    better, _ = optimiser.step(language_model, gradients, optimiser.init(language_model))
    assert float(better.loss(ids)) < float(value) - 0.1
    there = read(once(write, "llama"), backend="torch")
    close(float(there.loss(ids)), float(value), 1e-9)
    with pytest.raises(ValueError, match="no text has two tokens: there is nothing to predict"):
        language_model.loss([[5], []])


def test_a_stream_yields_the_text_of_generate_in_pieces(once):
    language_model = read(once(write, "qwen3"))
    options = {"max_new_tokens": 30, "temperature": 1.0, "top_k": 30, "seed": 1}
    stream = language_model.stream(PROMPTS[0], **options)
    pieces = [*stream]
    assert "".join(pieces) == stream.text == language_model.generate(PROMPTS[0], **options) and len(pieces) > 5
    assert (stream.prompt_tokens, stream.new_tokens) == (len(language_model.tokenizer(PROMPTS[:1])[0][0]), 30)
    again = [language_model.generate([PROMPTS[0]], **{**options, "seed": seed})[0] for seed in (1, 2)]
    assert again[0] == stream.text != again[1]


def test_strings_stop_a_text_before_them(once):
    language_model = read(once(write, "qwen3"))
    whole = language_model.generate(PROMPTS[0], max_new_tokens=40)
    word = whole[20:23]
    cut = whole[: whole.index(word)]
    stream = language_model.stream(PROMPTS[0], max_new_tokens=40, stop=word)
    assert "".join(stream) == cut == language_model.generate(PROMPTS[:1], max_new_tokens=40, stop=["no such", word])[0]
    assert stream.new_tokens < 40


def test_end_tokens_are_those_of_the_files(once, tmp_path):
    folder = write(tmp_path / "m", "qwen3")
    language_model = read(folder)
    tokens, _ = greedy(language_model, PROMPTS[:1], 20)
    (folder / "generation_config.json").unlink()
    for path, value in (("config.json", tokens[0][9]), ("generation_config.json", [tokens[0][5], 1])):
        edit(folder / path, eos_token_id=value)
        ended = read(folder)
        assert ended.ends == frozenset([value] if isinstance(value, int) else value)
        end = min(tokens[0].index(token) for token in ended.ends if token in tokens[0])
        stream = ended.stream(PROMPTS[0], max_new_tokens=20)
        assert "".join(stream) == stream.text and stream.new_tokens == end
    edit(folder / "generation_config.json", eos_token_id="two")
    refused(folder, "generation_config.json: eos_token_id is 'two'; expected an int", kind="LanguageModel")


def test_dialogues_become_texts_by_the_chat_template(once):
    language_model = read(once(write, "qwen3", template=FLAT))
    dialogue = [{"role": "user", "content": "a bird"}, {"role": "assistant", "content": "sings"}]
    text = transformers.AutoTokenizer.from_pretrained(once(write, "qwen3", template=FLAT)).apply_chat_template(
        dialogue, tokenize=False, add_generation_prompt=True
    )
    assert "answer" in text
    ids = language_model.tokenizer.of_chat(text)[0]
    (mine,) = language_model._prompts([dialogue], 5)
    assert mine == ids
    assert (
        language_model.generate(dialogue, max_new_tokens=5) == language_model.generate([dialogue, "the"], max_new_tokens=5)[0]
    )


def test_parts_of_a_message_are_shown_as_its_text(once):
    chat = read(once(write, "qwen3", template=STRUCTURED)).chat
    whole, parts = "a bird", [{"type": "text", "text": "a bird"}]
    shown = [chat.dialogue([{"role": "user", "content": content}]) for content in (whole, parts)]
    assert "a bird" in shown[0] and shown[0] == shown[1]


def test_weights_in_int8_write_a_text_too(once):
    small = read(once(write, "llama"), dtype=None, weights="int8")
    assert "Int8Weight" in repr(small.model.text.encoder.layers[0].attention.w_q) and small.model.head is not None
    assert len(small.generate("a bird", max_new_tokens=8)) > 8


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_caches_in_int8_move_logits_a_little(once, name, backend):
    """Read in parts and in one; the caches hold int8, and the model has windows or none."""
    language_model = read(once(write, name), backend=backend)
    (ids, _, _), _ = language_model.tokenizer(PROMPTS)
    exact = language_model.backend.to_numpy(language_model.logits(PROMPTS[0]))[-1]
    for lengths in ([len(ids)], [3, 1, len(ids) - 4]):
        caches, at = language_model.model.caches(1, "int8"), 0
        for length in lengths:
            states = language_model.model.step([ids[at : at + length]], caches)
            at += length
        logits = language_model.backend.to_numpy(language_model.model.logits(states))[0]
        assert 0 < abs(logits - exact).max() < 0.1 * exact.std()
        assert {str(cache.sequences[0].key.values.dtype).removeprefix("torch.") for cache in caches} == {"int8"}
    options = {"max_new_tokens": 9, "cache_dtype": "int8"}
    assert language_model.generate(PROMPTS[0], **options) == "".join(language_model.stream(PROMPTS[0], **options))
    with pytest.raises(ValueError, match="dtype is 'int4'; expected 'int8', or None"):
        language_model.generate("a bird", cache_dtype="int4")


def test_a_model_is_saved_as_transformers_reads_it(once, tmp_path):
    language_model = read(once(write, "mistral with windows"))
    language_model.save_pretrained(tmp_path / "out")
    with torch.no_grad(), wide():
        truth = loaded(tmp_path / "out", "AutoModelForCausalLM")
        ids = torch.tensor(language_model.tokenizer([TEXT])[0])
        close(language_model.logits(TEXT), truth(ids).logits[0], 1e-4)  # stored in float32


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        (["a", 3], {}, TypeError, r"prompts\[1\] is int; expected str"),
        (3, {}, TypeError, "prompts is int; expected a list of prompts"),
        (
            [[{"role": "user", "content": "a"}]],
            {},
            ValueError,
            r"prompts\[0\] is a dialogue, and the model has no chat template",
        ),
        (
            "a",
            {"max_new_tokens": LENGTH},
            ValueError,
            rf"prompts\[0\] has 3 tokens, and max_new_tokens is {LENGTH}; the model has",
        ),
        (["a", "a " * LENGTH], {}, ValueError, rf"prompts\[1\] has more than {LENGTH} tokens, and max_new_tokens is 128"),
        ("a", {"max_new_tokens": 0}, ValueError, "max_new_tokens is 0"),
        ("a", {"top_k": 3}, ValueError, "top_k limits what is drawn, and temperature 0 draws nothing: give temperature=1.0"),
        ("a", {"stop": ["b", ""]}, ValueError, "stop has an empty string"),
        ("a", {"stop": 3}, TypeError, "stop is int; expected a string, or a list of them"),
        ("a", {"do_sample": True}, TypeError, r"generate\(\) has no do_sample: write temperature=1.0 to draw tokens"),
        ("a", {"top": 1}, TypeError, r"generate\(\) has no top; its options are max_new_tokens, .*did you mean"),
    ],
)
def test_what_generate_refuses(once, prompts, options, error, message):
    with pytest.raises(error, match=message):
        read(once(write, "qwen3")).generate(prompts, **options)


def test_an_empty_text_has_no_tokens(once, tmp_path):
    folder = write(tmp_path / "m", "qwen3")
    state = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(state | {"post_processor": None}))
    with pytest.raises(ValueError, match=r"prompts\[1\] has no tokens: expected a text that is not empty"):
        read(folder).generate(["a", ""])
    assert read(folder).generate([]) == []
    assert float(read(folder).score(["a"])[0]) == 0


def test_models_that_write_no_text_are_refused(tmp_path, once):
    refused(
        once(write_model, "bert"), "model_type is 'bert'; supported: qwen3, gemma3_text, llama, mistral", kind="LanguageModel"
    )
    folder = write(tmp_path / "m", "gemma3")
    edit(folder / "config.json", use_bidirectional_attention=True)
    refused(folder, "the model sees later tokens too", kind="LanguageModel")
    edit(folder / "config.json", use_bidirectional_attention=False, final_logit_softcapping=30.0)
    refused(folder, "final_logit_softcapping is 30.0; supported: None", kind="LanguageModel")


def test_pickles_and_repr(once):
    language_model = read(once(write, "qwen3"))
    language_model.generate("a", max_new_tokens=2)
    again = pickle.loads(pickle.dumps(language_model))
    assert np.array_equal(again.logits("a bird"), language_model.logits("a bird"))
    assert repr(language_model).startswith(f"LanguageModel(max_seq_length={LENGTH})\nmodel: CausalModel, numpy float64")
