"""Options and functions that users of sentence-transformers expect, compared with it on the same models."""

import copy
from dataclasses import replace

import needs
import numpy as np
import pytest
from tested_backends import EACH_BACKEND
from tiny_models import close, edit, refused

import mha_text as mt
from mha_core.dispatch.backend import load
from mha_text.models.settings import Settings
from mha_text.models.similarity import SIMILARITIES

TEXTS = ["Swifts sleep on the wing.", "", "bees", "Beetles are everywhere, and so are ants and flies.", "the train was late"]
PROMPTS = {"query": "find: ", "passage": "text: ", "long": "an instruction of several words: "}
installed = needs.installed("sentence_transformers", "transformers", "torch")


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """The directory of a small BERT in float32, whose tokenizer names its special tokens."""
    from small_models import model, save, tokenizer_of

    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    narrow = copy.deepcopy(model("bert")).float()
    return save(tmp_path_factory.mktemp("bert") / "model", narrow, tokenizer_of("bert"), **names)


@pytest.fixture
def both(transformer, tmp_path):
    """The function that has sentence-transformers write a model, and returns their encoder and ours, both in float64."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    def made(*modules, pooling="mean", include_prompt=True, **options):
        torch.manual_seed(0)
        pool = Pooling(32, pooling_mode=pooling, include_prompt=include_prompt)
        model = SentenceTransformer(modules=[Transformer(str(transformer)), pool, *modules], device="cpu", **options)
        model.save(str(tmp_path / "saved"), create_model_card=False)
        reference = SentenceTransformer(str(tmp_path / "saved"), device="cpu").double()
        return reference, mt.TextEncoder.from_pretrained(tmp_path / "saved", dtype="float64")

    return made


def same(ours, reference, tolerance=1e-6):
    assert (ours.shape, ours.dtype) == (reference.shape, np.float32)
    close(ours, np.asarray(reference), tolerance)


def module(name, *sizes, **options):
    """Return a module of sentence-transformers."""
    import sentence_transformers.base.modules as modules

    return getattr(modules, name)(*sizes, **options)


# one text


@installed
def test_one_text_has_one_vector_and_prompts_are_those_of_the_model(both):
    reference, ours = both(prompts=PROMPTS, default_prompt_name="long")
    assert dict(ours.settings.prompts) == reference.prompts
    same(ours.encode(TEXTS[0]), reference.encode(TEXTS[0]))
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"prompt": "find: "}, {"prompt": ""}):
        same(ours.encode(TEXTS, **options), reference.encode(TEXTS, **options))
        same(ours.encode_query(TEXTS, **options), reference.encode_query(TEXTS, **options))
        same(ours.encode_document(TEXTS, **options), reference.encode_document(TEXTS, **options))
        same(np.concatenate(list(ours.stream(TEXTS, **options))), reference.encode(TEXTS, **options))
        close(ours(TEXTS, **options), reference.encode(TEXTS, **options), 1e-12)
    assert abs(ours.encode_query(TEXTS) - ours.encode(TEXTS)).max() > 0.01
    assert abs(ours.encode_document(TEXTS) - ours.encode(TEXTS)).max() > 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": ["a"]}, "prompts is ['a']; expected texts by their names"),
        ({"prompts": {"query": 3}}, "prompts is {'query': 3}; expected texts by their names"),
        ({"default_prompt_name": "web"}, "default_prompt_name is 'web'; supported: query, document"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name is 'maxsim'; supported: cosine, dot, euclidean, manhattan"),
        ({"truncate_dim": 0}, "truncate_dim is 0; expected at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_their_file(tiny_model, settings, message):
    edit(tiny_model / "config_sentence_transformers.json", **settings)
    refused(tiny_model, f"config_sentence_transformers.json: {message}")


@installed
@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_every_pooling_may_leave_out_the_prompt(both, pooling):
    reference, ours = both(pooling=pooling, include_prompt=False, prompts=PROMPTS)
    vectors = ours.encode(TEXTS, prompt_name="long")
    same(vectors, reference.encode(TEXTS, prompt_name="long"), 1e-5 if pooling == "mean_sqrt_len_tokens" else 1e-6)
    included = replace(ours, pooling=replace(ours.pooling, include_prompt=True)).encode(TEXTS, prompt_name="long")
    assert pooling == "lasttoken" or abs(vectors - included).max() > 0.01
    same(ours.encode(TEXTS), reference.encode(TEXTS), 1e-5)


def test_a_text_whose_tokens_are_all_of_the_prompt_has_the_vector_0(tiny):
    pooling = replace(tiny.pooling, include_prompt=False, modes=("mean", "max"))
    short = replace(tiny, pooling=pooling, settings=Settings(truncate_dim=None))
    assert short.tokenizer.length_of_prompt("a bird") == 3  # [CLS] and two words
    np.testing.assert_array_equal(short.encode_ids([[2, 4], [2, 4, 5]], prompt="a bird"), np.zeros((2, 16)))


# the form of vectors


@installed
@pytest.mark.parametrize("is_normalized", [False, True])
def test_vectors_are_cut_after_the_models_modules_and_before_normalizing(both, is_normalized):
    reference, ours = both(*([module("Normalize")] if is_normalized else []), truncate_dim=20)
    assert ours.dim == reference.get_embedding_dimension() == 20
    for dim in (None, 1, 7, 32):
        same(ours.encode(TEXTS, truncate_dim=dim), reference.encode(TEXTS, truncate_dim=dim))
        vectors = ours.encode(TEXTS, truncate_dim=dim, normalize=True)
        same(vectors, reference.encode(TEXTS, truncate_dim=dim, normalize_embeddings=True))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
        assert ours.encode([], truncate_dim=dim).shape == (0, dim or 20)
        assert ours([], truncate_dim=dim).shape == (0, dim or 20)


@installed
@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_precisions_are_those_of_sentence_transformers(both, precision, rng):
    from sentence_transformers.util import quantize_embeddings

    def equal(actual, expected):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(actual, expected)

    reference, ours = both()
    vectors = ours.encode(TEXTS, precision=precision, truncate_dim=20)
    equal(vectors, quantize_embeddings(ours.encode(TEXTS, truncate_dim=20), precision))
    # a number on the border of two integers may be either
    tolerance = {"float32": 1e-6, "int8": 1, "uint8": 1}.get(precision, 0)
    expected = reference.encode(TEXTS, precision=precision, truncate_dim=20)
    close(vectors.astype(np.float64), expected, tolerance)
    x = rng.normal(size=(150, 13)).astype(np.float32)
    x[:, 3], x[7] = 0.5, 0
    ranges = np.asarray([[-1.0] * 13, [2.0] * 13], dtype=np.float32)
    for options in ({}, {"ranges": ranges}, {"calibration_embeddings": x[:40] * 2}):
        expected = quantize_embeddings(x, precision, **options)
        equal(mt.quantize_embeddings(x, precision, **options), expected)
        if options or "int8" not in precision:
            equal(mt.quantize_embeddings(x[5], precision, **options), expected[5])
    equal(mt.quantize_embeddings(x[:0], precision), quantize_embeddings(x[:0], precision))


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_precisions_are_the_same_on_every_backend(backend, precision, rng):
    x = rng.normal(size=(20, 19)).astype(np.float32)
    quantized = backend.to_numpy(mt.quantize_embeddings(backend.from_numpy(x), precision))
    np.testing.assert_array_equal(quantized, mt.quantize_embeddings(x, precision))


@installed
def test_tokens_are_the_hidden_states_of_each_text(both):
    reference, ours = both(module("Normalize"), prompts=PROMPTS)
    for options in ({}, {"prompt_name": "query"}):
        expected = reference.encode(TEXTS, output_value="token_embeddings", **options)
        for states, reference_states in zip(ours.encode(TEXTS, output="tokens", **options), expected, strict=True):
            same(states, reference_states.numpy(), 2e-6)
    same(ours.encode(TEXTS[0], output="tokens"), reference.encode(TEXTS[0], output_value="token_embeddings"), 2e-6)
    assert ours.encode([], output="tokens") == []


# similarity


@installed
@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(both, name, rng):
    reference, ours = both(similarity_fn_name=name)
    assert ours.similarity_fn_name == reference.similarity_fn_name == name
    a, b = (rng.normal(size=(count, 11)) for count in (6, 9))
    a[2] = 0
    for x, y in ((a, b), (a[0], b), (a, b[1]), (a[:0], b)):
        close(ours.similarity(x, y), reference.similarity(x, y), 1e-12)
    for x, y in ((a, b[:6]), (a[0], b[0])):
        np.testing.assert_allclose(ours.similarity_pairwise(x, y), reference.similarity_pairwise(x, y), atol=1e-12)
    default = replace(ours, settings=Settings())
    assert default.similarity_fn_name == "cosine"
    np.testing.assert_array_equal(default.similarity(a, b, name=name), ours.similarity(a, b))


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_similarities_are_the_same_on_every_backend_in_any_blocks(tiny, backend, rng, monkeypatch):
    monkeypatch.setattr("mha_text.models.similarity._ELEMENTS", 100)
    a, b = (rng.normal(size=(count, 11)).astype(np.float32) for count in (23, 4))
    loaded = load(backend)
    on = loaded.from_numpy
    for name in SIMILARITIES:
        pairs = [[loaded.to_numpy(tiny.similarity_pairwise(on(x), on(y), name=name)) for y in b] for x in a]
        close(loaded.to_numpy(tiny.similarity(on(a), on(b), name=name)), pairs, 5e-6)


def test_half_precision_is_compared_in_float32(tiny, rng):
    a = rng.normal(size=(5, 300)).astype(np.float16) * 40
    products = tiny.similarity(a, a, name="dot")
    assert products.dtype == np.float32
    np.testing.assert_allclose(np.diagonal(products), np.sum(a.astype(np.float64) ** 2, axis=1), rtol=1e-5)


# Dense modules


@installed
@pytest.mark.parametrize("activation", ["Identity", "Tanh", "ReLU", "GELU", "SiLU"])
def test_dense_modules_follow_pooling(both, activation):
    import torch

    first = module("Dense", 64, 24, activation_function=getattr(torch.nn, activation)())
    reference, ours = both(first, module("Dense", 24, 12, bias=False), module("Normalize"), pooling=("cls", "mean"))
    assert ours.dim == reference.get_embedding_dimension() == 12
    same(ours.encode(TEXTS), reference.encode(TEXTS))
    assert "pooling=cls+mean, normalize=True, dense=2)" in repr(ours)


@installed
def test_dense_weights_are_saved(both, tmp_path):
    from sentence_transformers import SentenceTransformer

    _, ours = both(module("Dense", 32, 10), module("Normalize"))
    changed = replace(ours, dense=tuple(layer.map(lambda x: x + 0.25) for layer in ours.dense))
    vectors = changed.encode(TEXTS)
    assert abs(vectors - ours.encode(TEXTS)).max() > 0.01
    changed.save_pretrained(tmp_path / "new")
    same(mt.TextEncoder.from_pretrained(tmp_path / "new", dtype="float64").encode(TEXTS), vectors)
    same(vectors, SentenceTransformer(str(tmp_path / "new"), device="cpu").double().encode(TEXTS))


# errors


def test_wrong_arguments_are_refused(tiny):
    x, narrow, quantize = np.ones((3, 4)), np.ones((3, 4), np.int8), mt.quantize_embeddings
    unknown, vectors_only = {"prompt_name": "qeury"}, "normalize, truncate_dim and precision are for vectors of texts"
    few = (
        "int8 needs the range of each number, which one vector does not have: "
        r"write mt\.quantize_embeddings\(encoder\.encode\(texts\), 'int8', ranges=\.\.\.\)$"
    )
    for error, message, function, *arguments, options in (
        (ValueError, "is 'qeury'; the model has the prompts query, document; did you mean", tiny.encode, ["a"], unknown),
        (ValueError, "are both given; expected one", tiny.encode_query, ["a"], {"prompt": "x", "prompt_name": "query"}),
        (TypeError, "prompt is int; expected str", tiny.stream, ["a"], {"prompt": 3}),
        (ValueError, "output is 'token'; expected vectors or tokens", tiny.encode, ["a"], {"output": "token"}),
        (ValueError, vectors_only, tiny.encode, ["a"], {"output": "tokens", "normalize": True}),
        (ValueError, vectors_only, tiny.encode, ["a"], {"output": "tokens", "truncate_dim": 3}),
        (ValueError, vectors_only, tiny.encode, ["a"], {"output": "tokens", "precision": "int8"}),
        *(
            (ValueError, rf"truncate_dim is {dim!r}; expected an int from 1 to 8", function, [], {"truncate_dim": dim})
            for dim in (0, 9, -1, True, 2.0, "3")
            for function in (tiny.encode, tiny.stream, tiny, tiny.encode_ids)
        ),
        (ValueError, "precision is 'int4'; expected one of", tiny.encode, "a", {"precision": "int4"}),
        (ValueError, few, tiny.encode, "a", {"precision": "int8"}),
        (ValueError, few, tiny.encode, ["a"], {"precision": "int8"}),
        (ValueError, "one of float32, int8, uint8, binary, ubinary; did you mean 'int8'", quantize, x, "int4", {}),
        (ValueError, r"ranges has shape \(4, 3\); expected \(2, 4\)", quantize, x, "int8", x.T, {}),
        (ValueError, r"calibration_embeddings has shape \(3, 3\); expected \(m, 4\)", quantize, x, "int8", None, x[:, :3], {}),
        (ValueError, r"embeddings has shape \(1, 3, 4\); expected \(n, d\)", quantize, x[None], "binary", {}),
        (TypeError, "embeddings has dtype int8; expected a floating dtype", quantize, narrow, "int8", {}),
        (ValueError, "name is 'cos'; expected one of cosine, dot", tiny.similarity, x, x, {"name": "cos"}),
        (ValueError, r"b has shape \(3, 3\); expected \(n, d\) or \(d,\)", tiny.similarity, x, x[:, :3], {}),
        (ValueError, r"a has shape \(3, 4\) and b \(2, 4\)", tiny.similarity_pairwise, x, x[:2], {}),
        (TypeError, "a has dtype int8; expected a floating dtype", tiny.similarity, narrow, x, {}),
    ):
        with pytest.raises(error, match=message):
            function(*arguments, **options)


# the real model


@installed
def test_the_real_minilm_gives_the_same(minilm):
    from sentence_transformers import SentenceTransformer

    reference, ours = SentenceTransformer(str(minilm), device="cpu"), mt.TextEncoder.from_pretrained(minilm)
    same(ours.encode(TEXTS[0]), reference.encode(TEXTS[0]))
    options = {"prompt": "query: ", "truncate_dim": 64}
    same(ours.encode_query(TEXTS, **options), reference.encode_query(TEXTS, **options))
    vectors = ours.encode(TEXTS)
    same(ours.similarity(vectors, vectors), reference.similarity(vectors, vectors).numpy())


def test_int8_weights_of_the_real_minilm_leave_the_vectors_where_they_were(minilm, sentences):
    """One scale for a row would give a smallest cosine of 0.989."""
    encoder = mt.TextEncoder.from_pretrained(minilm)
    vectors, rounded = (each.encode(sentences) for each in (encoder, encoder.quantized()))
    assert (vectors * rounded).sum(axis=1).min() > 0.997
    nearest = [(x @ x.T - 2 * np.eye(len(sentences))).argmax(axis=1) for x in (vectors, rounded)]
    assert np.mean(nearest[0] != nearest[1]) < 0.03  # ties: for 11 of 240 the two nearest are less than 0.005 apart
