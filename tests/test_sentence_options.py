"""What users of sentence-transformers expect of a text encoder, compared with sentence-transformers on the same models."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import needs
from conftest import EACH_BACKEND, edit, mha
from mha_core.dispatch.backend import load
from mha_core.models.settings import Settings

TEXTS = ["Swifts sleep on the wing.", "", "bees", "Beetles are everywhere, and so are ants and flies.", "the train was late"]
PROMPTS = {"query": "find: ", "passage": "text: ", "long": "an instruction of several words: "}
installed = needs.installed("sentence_transformers", "transformers", "torch")


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """The directory of a small BERT, in float32, whose tokenizer names its special tokens."""
    from safetensors.numpy import load_file, save_file

    from small_models import write_model

    folder = write_model(tmp_path_factory.mktemp("bert") / "model", "bert")
    path = folder / "model.safetensors"
    save_file({name: x.astype(np.float32) for name, x in load_file(path).items()}, path, metadata={"format": "pt"})
    edit(folder / "config.json", dtype="float32")
    edit(folder / "tokenizer_config.json", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")
    return folder


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
        theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").double()
        return theirs, mha.TextEncoder.from_pretrained(tmp_path / "saved", dtype="float64")

    return made


def same(ours, theirs, tolerance=1e-6):
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=0, atol=tolerance)


@pytest.fixture
def tiny(tiny_model):
    return mha.TextEncoder.from_pretrained(tiny_model)


def dense(*sizes, **options):
    from sentence_transformers.base.modules import Dense

    return Dense(*sizes, **options)


def normalize():
    from sentence_transformers.base.modules import Normalize

    return Normalize()


# one text


@installed
def test_one_text_has_one_vector_and_prompts_are_those_of_the_model(both):
    theirs, ours = both(prompts=PROMPTS, default_prompt_name="long")
    assert dict(ours.settings.prompts) == theirs.prompts
    same(ours.encode(TEXTS[0]), theirs.encode(TEXTS[0]))
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"prompt": "find: "}, {"prompt": ""}):
        same(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options))
        same(ours.encode_query(TEXTS, **options), theirs.encode_query(TEXTS, **options))
        same(ours.encode_document(TEXTS, **options), theirs.encode_document(TEXTS, **options))
        same(np.concatenate(list(ours.stream(TEXTS, **options))), theirs.encode(TEXTS, **options))
        np.testing.assert_allclose(ours(TEXTS, **options), theirs.encode(TEXTS, **options), rtol=0, atol=1e-12)
    assert abs(ours.encode_query(TEXTS) - ours.encode(TEXTS)).max() > 0.01
    assert abs(ours.encode_document(TEXTS) - ours.encode(TEXTS)).max() > 0.01


def test_a_prompt_that_the_model_lacks_is_refused_with_those_it_has(tiny):
    with pytest.raises(ValueError, match="prompt_name is 'qeury'; the model has the prompts query, document; did you mean"):
        tiny.encode(["a"], prompt_name="qeury")
    with pytest.raises(ValueError, match="prompt and prompt_name are both given; expected one of them"):
        tiny.encode_query(["a"], prompt="x", prompt_name="query")
    with pytest.raises(TypeError, match="prompt is int; expected str"):
        tiny.stream(["a"], prompt=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": ["a"]}, r"prompts is \['a'\]; expected texts by their names"),
        ({"prompts": {"query": 3}}, r"prompts is \{'query': 3\}; expected texts by their names"),
        ({"default_prompt_name": "web"}, "default_prompt_name is 'web'; supported: query, document"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name is 'maxsim'; supported: cosine, dot, euclidean, manhattan"),
        ({"truncate_dim": 0}, "truncate_dim is 0; expected at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_their_file(tiny_model, settings, message):
    edit(tiny_model / "config_sentence_transformers.json", **settings)
    with pytest.raises(mha.ModelError, match=rf"config_sentence_transformers\.json: {message}"):
        mha.TextEncoder.from_pretrained(tiny_model)


@installed
@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_every_pooling_may_leave_out_the_prompt(both, pooling):
    theirs, ours = both(pooling=pooling, include_prompt=False, prompts=PROMPTS)
    vectors = ours.encode(TEXTS, prompt_name="long")
    same(vectors, theirs.encode(TEXTS, prompt_name="long"), 1e-5 if pooling == "mean_sqrt_len_tokens" else 1e-6)
    included = replace(ours, pooling=replace(ours.pooling, include_prompt=True)).encode(TEXTS, prompt_name="long")
    assert pooling == "lasttoken" or abs(vectors - included).max() > 0.01
    same(ours.encode(TEXTS), theirs.encode(TEXTS), 1e-5)


def test_a_text_whose_tokens_are_all_of_the_prompt_has_the_vector_0(tiny):
    pooling = replace(tiny.pooling, include_prompt=False, modes=("mean", "max"))
    short = replace(tiny, pooling=pooling, settings=Settings(truncate_dim=None))
    assert short.tokenizer.length_of_prompt("a bird") == 3  # [CLS] and two words
    np.testing.assert_array_equal(short.encode_ids([[2, 4], [2, 4, 5]], prompt="a bird"), np.zeros((2, 16)))


# the form of vectors


@installed
@pytest.mark.parametrize("is_normalized", [False, True])
def test_vectors_are_cut_after_the_models_modules_and_before_normalizing(both, is_normalized):
    theirs, ours = both(*([normalize()] if is_normalized else []), truncate_dim=20)
    assert ours.dim == theirs.get_embedding_dimension() == 20
    for dim in (None, 1, 7, 32):
        same(ours.encode(TEXTS, truncate_dim=dim), theirs.encode(TEXTS, truncate_dim=dim))
        found = ours.encode(TEXTS, truncate_dim=dim, normalize=True)
        same(found, theirs.encode(TEXTS, truncate_dim=dim, normalize_embeddings=True))
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
        assert ours.encode([], truncate_dim=dim).shape == (0, dim or 20)
        assert ours([], truncate_dim=dim).shape == (0, dim or 20)


@pytest.mark.parametrize("dim", [0, 9, -1, True, 2.0, "3"])
def test_a_vector_has_no_more_numbers_than_the_model_gives(tiny, dim):
    for call in (tiny.encode, tiny.stream, tiny, tiny.encode_ids):
        with pytest.raises(ValueError, match=rf"truncate_dim is {dim!r}; expected an int from 1 to 8"):
            call([], truncate_dim=dim)


@installed
@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_precisions_are_those_of_sentence_transformers(both, precision, rng):
    from sentence_transformers.util import quantize_embeddings

    theirs, ours = both()
    found = ours.encode(TEXTS, precision=precision, truncate_dim=20)
    expected = quantize_embeddings(ours.encode(TEXTS, truncate_dim=20), precision)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    expected = theirs.encode(TEXTS, precision=precision, truncate_dim=20)
    tolerance = {"float32": 1e-6, "int8": 1, "uint8": 1}.get(
        precision, 0
    )  # a number on the border of two integers may be either
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=tolerance)
    x = rng.normal(size=(150, 13)).astype(np.float32)
    x[:, 3], x[7] = 0.5, 0
    ranges, others = np.asarray([[-1.0] * 13, [2.0] * 13], dtype=np.float32), x[:40] * 2
    for options in ({}, {"ranges": ranges}, {"calibration_embeddings": others}):
        expected = quantize_embeddings(x, precision, **options)
        found = mha.quantize_embeddings(x, precision, **options)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        if options or "int8" not in precision:
            np.testing.assert_array_equal(mha.quantize_embeddings(x[5], precision, **options), expected[5])
    empty = mha.quantize_embeddings(x[:0], precision)
    expected = quantize_embeddings(x[:0], precision)
    assert (empty.shape, empty.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_precisions_are_the_same_on_every_backend(backend, precision, rng):
    x = rng.normal(size=(20, 19)).astype(np.float32)
    found = backend.to_numpy(mha.quantize_embeddings(backend.from_numpy(x), precision))
    np.testing.assert_array_equal(found, mha.quantize_embeddings(x, precision))


def test_wrong_precisions_are_refused(tiny):
    x = np.ones((3, 4), dtype=np.float32)
    quantize = mha.quantize_embeddings
    for error, message, call, *given in (
        (ValueError, "expected one of float32, int8, uint8, binary, ubinary; did you mean 'int8'", quantize, x, "int4"),
        (ValueError, r"ranges has shape \(4, 2\); expected \(2, 4\)", quantize, x, "int8", np.ones((4, 2), np.float32)),
        (ValueError, r"calibration_embeddings has shape \(3, 3\); expected \(m, 4\)", quantize, x, "int8", None, x[:, :3]),
        (ValueError, r"embeddings has shape \(1, 3, 4\); expected \(n, d\)", quantize, x[None], "binary"),
        (TypeError, "embeddings has dtype int8; expected a floating dtype", quantize, x.astype(np.int8), "int8"),
    ):
        with pytest.raises(error, match=message):
            call(*given)
    with pytest.raises(ValueError, match="precision is 'int4'; expected one of float32, int8"):
        tiny.encode("a", precision="int4")
    for one in ("a", ["a"]):
        with pytest.raises(
            ValueError, match="int8 needs the range of each number, which one vector does not have: give ranges"
        ):
            tiny.encode(one, precision="int8")


@installed
def test_tokens_are_the_hidden_states_of_each_text(both):
    theirs, ours = both(normalize(), prompts=PROMPTS)
    for options in ({}, {"prompt_name": "query"}):
        expected = theirs.encode(TEXTS, output_value="token_embeddings", **options)
        found = ours.encode(TEXTS, output="tokens", **options)
        assert len(found) == len(TEXTS)
        for one, other in zip(found, expected, strict=True):
            same(one, other.numpy(), 2e-6)
    same(ours.encode(TEXTS[0], output="tokens"), theirs.encode(TEXTS[0], output_value="token_embeddings"), 2e-6)
    assert ours.encode([], output="tokens") == []


def test_options_of_vectors_are_refused_for_tokens(tiny):
    for options in ({"normalize": True}, {"truncate_dim": 3}, {"precision": "int8"}):
        with pytest.raises(ValueError, match="normalize, truncate_dim and precision are for vectors of texts"):
            tiny.encode(["a"], output="tokens", **options)
    with pytest.raises(ValueError, match="output is 'token_embeddings'; expected vectors or tokens"):
        tiny.encode(["a"], output="token_embeddings")


# similarity


@installed
@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(both, name, rng):
    theirs, ours = both(similarity_fn_name=name)
    assert ours.similarity_fn_name == theirs.similarity_fn_name == name
    a, b = (rng.normal(size=(count, 11)) for count in (6, 9))
    a[2] = 0
    for one, other in ((a, b), (a[0], b), (a, b[1]), (a[:0], b)):
        np.testing.assert_allclose(ours.similarity(one, other), theirs.similarity(one, other), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.similarity_pairwise(a, b[:6]), theirs.similarity_pairwise(a, b[:6]), atol=1e-12)
    np.testing.assert_allclose(ours.similarity_pairwise(a[0], b[0]), theirs.similarity_pairwise(a[0], b[0]), atol=1e-12)
    default = replace(ours, settings=Settings())
    assert default.similarity_fn_name == "cosine"
    np.testing.assert_array_equal(default.similarity(a, b, name=name), ours.similarity(a, b))


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_similarities_are_the_same_on_every_backend_in_any_blocks(tiny, backend, rng, monkeypatch):
    import mha_core.models.similarity as module

    monkeypatch.setattr(module, "_ELEMENTS", 100)
    a, b = (rng.normal(size=(count, 11)).astype(np.float32) for count in (23, 4))
    loaded = load(backend)
    on = loaded.from_numpy
    for name in module.SIMILARITIES:
        pairs = [[loaded.to_numpy(tiny.similarity_pairwise(on(x), on(y), name=name)) for y in b] for x in a]
        found = loaded.to_numpy(tiny.similarity(on(a), on(b), name=name))
        np.testing.assert_allclose(found, pairs, rtol=0, atol=5e-6)


def test_half_precision_is_compared_in_float32(tiny, rng):
    a = rng.normal(size=(5, 300)).astype(np.float16) * 40
    found = tiny.similarity(a, a, name="dot")
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.diagonal(found), np.sum(a.astype(np.float64) ** 2, axis=1), rtol=1e-5)


def test_wrong_similarities_are_refused(tiny):
    x = np.ones((3, 4))
    for error, message, call in (
        (ValueError, "name is 'cos'; expected one of cosine, dot", lambda: tiny.similarity(x, x, name="cos")),
        (ValueError, r"b has shape \(3, 3\); expected \(n, d\) or \(d,\)", lambda: tiny.similarity(x, x[:, :3])),
        (ValueError, r"a has shape \(3, 4\) and b \(2, 4\)", lambda: tiny.similarity_pairwise(x, x[:2])),
        (TypeError, "a has dtype int8; expected a floating dtype", lambda: tiny.similarity(x.astype(np.int8), x)),
    ):
        with pytest.raises(error, match=message):
            call()


# Dense modules


@installed
@pytest.mark.parametrize("activation", ["Identity", "Tanh", "ReLU", "GELU", "SiLU"])
def test_dense_modules_follow_pooling(both, activation):
    import torch

    first = dense(64, 24, activation_function=getattr(torch.nn, activation)())
    theirs, ours = both(first, dense(24, 12, bias=False), normalize(), pooling=("cls", "mean"))
    assert ours.dim == theirs.get_embedding_dimension() == 12
    same(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert "pooling=cls+mean, normalize=True, dense=2)" in repr(ours)


@installed
def test_dense_weights_are_pickled_saved_and_trained(both, tmp_path, rng):
    from sentence_transformers import SentenceTransformer

    _, ours = both(dense(32, 10), normalize())
    assert set(ours.dense[0].arrays()) == {"w", "b"}
    again = pickle.loads(pickle.dumps(ours))
    assert again is pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))
    changed = replace(ours, dense=tuple(layer.map(lambda x: x + 0.25) for layer in ours.dense))
    vectors = changed.encode(TEXTS)
    assert abs(vectors - ours.encode(TEXTS)).max() > 0.01
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(changed)).encode(TEXTS), vectors)
    changed.save_pretrained(tmp_path / "new")
    same(mha.TextEncoder.from_pretrained(tmp_path / "new", dtype="float64").encode(TEXTS), vectors)
    same(vectors, SentenceTransformer(str(tmp_path / "new"), device="cpu").double().encode(TEXTS))

    d = rng.standard_normal(vectors.shape)
    out, pullback = mha.vjp(ours, TEXTS, wrt=lambda name: name.startswith("dense."))
    np.testing.assert_allclose(out, ours.encode(TEXTS), atol=1e-6)
    gradients, _ = pullback(d)
    (found,) = gradients.dense
    step = {name: rng.standard_normal(x.shape) for name, x in ours.dense[0].arrays().items()}

    def moved(by):
        layer = ours.dense[0]
        return np.sum(replace(ours, dense=(replace(layer, w=layer.w + by * step["w"], b=layer.b + by * step["b"]),))(TEXTS) * d)

    expected = sum(np.sum(x * step[name]) for name, x in found.arrays().items())
    assert (moved(1e-6) - moved(-1e-6)) / 2e-6 == pytest.approx(expected, rel=1e-6)


# the real model


@installed
def test_the_real_minilm_gives_the_same(minilm):
    from sentence_transformers import SentenceTransformer

    theirs, ours = SentenceTransformer(str(minilm), device="cpu"), mha.TextEncoder.from_pretrained(minilm)
    same(ours.encode(TEXTS[0]), theirs.encode(TEXTS[0]))
    same(
        ours.encode_query(TEXTS, prompt="query: ", truncate_dim=64),
        theirs.encode_query(TEXTS, prompt="query: ", truncate_dim=64),
    )
    vectors = ours.encode(TEXTS)
    same(ours.similarity(vectors, vectors), theirs.similarity(vectors, vectors).numpy())
