"""CrossEncoder against transformers and sentence-transformers, with small random models of every family."""

from dataclasses import replace

import numpy as np
import pytest
from cross_models import expected_scores, reference
from needs import Library
from small_models import FAMILIES, LIMIT, PAIRS, logits, model, write_model
from tiny_models import close, edit

import mha_text as mt
import mha_text.models.packing as packing
from mha_text.models.scores import scores as scores_of

transformers = Library("transformers")
NEWER = ["modernbert", "modernbert with biases", "nomic", "gte", "gte without token types", "jina 3"]
NEWER += ["eurobert", "eurobert, mean", "eurobert, first", "qwen3", "gemma3"]
BACKENDS = [
    *((name, "numpy") for name in (*FAMILIES, *NEWER)),
    *((name, xp) for name in FAMILIES for xp in ("torch", "array_api_strict")),
]
LONG = "the bird sings at dawn. " * 40
LONG_PAIRS = [(LONG, "a tree"), ("a tree", LONG), (LONG, LONG[4:]), (LONG[4:], LONG), (LONG, "")]


@pytest.fixture
def bert(cross_folder):
    return mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")


# scores


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_logits_equal_those_of_transformers(cross_folder, name, backend):
    cross, sample = mt.CrossEncoder.from_pretrained(cross_folder(name), backend=backend, dtype="float64"), PAIRS[::3]
    expected = logits(cross_folder(name), sample, model(name, "AutoModelForSequenceClassification", num_labels=1))[:, 0]
    assert np.ptp(expected) > 1e-3, "pairs differ"
    assert cross(sample).dtype == cross.backend.xp.float64
    close(cross.backend.to_numpy(cross(sample)), expected, 1e-10)
    close(cross.backend.to_numpy(cross.predict(sample, activation="identity")), expected, 1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_equal_those_of_sentence_transformers_and_long_pairs_are_cut_as_there(cross_folder, name):
    pairs = [*PAIRS, *LONG_PAIRS]
    expected = expected_scores(cross_folder(name), pairs)
    assert 0 < expected.min() < expected.max() < 1
    message = f"^5 of {len(pairs)} pairs are longer than {LIMIT} tokens, and were cut there$"
    for backend, dtype, atol in (("numpy", "float64", 1e-6), ("numpy", None, 1e-5), ("torch", None, 1e-5)):
        cross = mt.CrossEncoder.from_pretrained(cross_folder(name), backend=backend, dtype=dtype)
        assert cross.max_seq_length == LIMIT
        with pytest.warns(mt.TruncationWarning, match=message):
            scores = cross.predict(pairs)
        assert (scores.dtype, scores.shape) == (cross.backend.xp.float32, (len(pairs),))
        close(scores, expected, atol)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "distilbert"])
def test_a_model_with_several_labels_gives_logits_of_each(cross_folder, name):
    source = cross_folder(name, num_labels=3)
    cross, expected = mt.CrossEncoder.from_pretrained(source, dtype="float64"), reference(source)
    assert (cross.num_labels, cross.activation) == (3, "identity")
    close(cross.predict(PAIRS), expected.predict(PAIRS), 1e-6)
    close(cross.predict(PAIRS, activation="softmax"), expected.predict(PAIRS, apply_softmax=True), 1e-6)
    close(cross.predict(PAIRS[3]), expected.predict(PAIRS[3]), 1e-6)
    assert cross.predict([]).shape == (0, 3)
    assert cross(PAIRS).shape == (len(PAIRS), 3)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("BertTokenizer", None),
        ("TokenizersBackend", None),
        ("PreTrainedTokenizerFast", None),
        ("BertTokenizer", ["input_ids", "attention_mask"]),
        ("TokenizersBackend", ["input_ids", "token_type_ids"]),
    ],
)
def test_type_ids_are_given_to_the_model_where_transformers_does(tmp_path, kind, names):
    source = write_model(tmp_path / "m", "bert", num_labels=1)
    edit(
        source / "tokenizer_config.json", ["model_input_names"] * (names is None), tokenizer_class=kind, model_input_names=names
    )
    expected = "token_type_ids" in transformers.AutoTokenizer.from_pretrained(source)("a", "b")
    assert mt.CrossEncoder.from_pretrained(source).tokenizer.gives_type_ids == expected


def test_half_precision_gives_scores_in_float32(cross_folder, bert):
    for backend, dtype in (("numpy", "float16"), ("torch", "bfloat16")):
        scores = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend=backend, dtype=dtype).predict(PAIRS)
        assert str(scores.dtype).endswith("float32")
        close(scores, bert.predict(PAIRS), 0.1)


def test_the_order_and_the_batches_do_not_matter(bert, monkeypatch, rng):
    expected = bert.predict(PAIRS)
    order = rng.permutation(len(PAIRS))
    close(bert.predict([PAIRS[at] for at in order]), expected[order], 1e-6)
    close([bert.predict(pair) for pair in PAIRS], expected, 1e-6)
    for tokens, window in ((1, 5), (100, 7), (10**6, 10**6)):
        monkeypatch.setattr(packing, "TOKENS", tokens)
        monkeypatch.setattr(packing, "WINDOW", window)
        close(bert.predict(PAIRS), expected, 1e-6)
        close(bert(PAIRS), bert.predict(PAIRS, activation="identity"), 1e-5)


def test_pairs_come_from_any_iterable_and_one_pair_gives_a_scalar(bert):
    pairs = [("a bird", "sings"), ("the tree", "at dawn")]
    for same in (iter(pairs), np.array(pairs), [["a bird", "sings"], pairs[1]]):
        np.testing.assert_array_equal(bert.predict(same), bert.predict(pairs))
    for nothing in ([], iter([])):
        assert bert.predict(nothing).shape == bert(nothing).shape == (0,)
        assert bert.predict(nothing).dtype == np.float32
    for pair in (pairs[0], list(pairs[0]), np.array(pairs[0])):
        assert bert.predict(pair).shape == ()
        close(bert.predict(pair), bert.predict(pairs[:1])[0], 1e-7)
    assert bert(pairs[0]).shape == ()


def test_every_call_warns_the_caller_of_pairs_that_are_cut(bert):
    for call in (lambda: bert([(LONG, "a")]), lambda: bert.rank("a", [LONG]), lambda: bert.predict(("a", LONG))):
        with pytest.warns(mt.TruncationWarning, match="^1 of 1 pairs ") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


def test_sigmoid_is_exact_in_its_tails():
    logits = np.array([[-1000.0], [-80.0], [0.0], [30.0], [1000.0]])
    np.testing.assert_allclose(scores_of(np, logits, "sigmoid"), [0, np.exp(-80.0), 0.5, 1 - np.exp(-30.0), 1], rtol=1e-15)


# rank


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_rank_equals_that_of_sentence_transformers(cross_folder, name, sentences):
    query, documents = "birds that sleep on the wing", [text[:60] for text in sentences[::12]]
    cross, expected = mt.CrossEncoder.from_pretrained(cross_folder(name), dtype="float64"), reference(cross_folder(name))
    for top_k in (None, 3, 1000):
        hits, expected_hits = (each.rank(query, documents, top_k) for each in (cross, expected))
        assert [(hit.corpus_id, hit.text) for hit in hits] == [(hit["corpus_id"], None) for hit in expected_hits]
        close([hit.score for hit in hits], [hit["score"] for hit in expected_hits], 1e-6)
    for hit in cross.rank(query, documents, 5, return_documents=True):
        assert hit.text == documents[hit.corpus_id]


def test_equal_scores_are_ranked_in_the_order_given(bert):
    head = replace(bert.model.head, w_out=np.zeros_like(bert.model.head.w_out))
    equal = replace(bert, model=replace(bert.model, head=head))
    hits = equal.rank("a bird", ["sings", "", "at dawn", "the tree", "sings"], 4)
    assert [hit.corpus_id for hit in hits] == [0, 1, 2, 3] and len({hit.score for hit in hits}) == 1
    assert equal.rank("a bird", []) == []


# errors


def test_wrong_arguments_are_refused(bert, cross_folder):
    several = mt.CrossEncoder.from_pretrained(cross_folder("bert", num_labels=3))
    for function, arguments, error, message in (
        (bert.rank, ("a", "b"), TypeError, r"documents is one str; expected a list of strings: write \[document\]"),
        (bert.rank, (3, ["b"]), TypeError, "query is int; expected str"),
        (bert.rank, ("a", ["b", None]), TypeError, r"documents\[1\] is NoneType; expected str"),
        (bert.rank, ("a", ["b"], 0), ValueError, "top_k is 0; expected an int of at least 1"),
        (several.rank, ("a", ["b"]), ValueError, "the model has 3 labels; rank needs a model with one: use predict"),
    ):
        with pytest.raises(error, match=message):
            function(*arguments)
    for activation, error, message in (
        ("sigmod", ValueError, "activation is 'sigmod'; expected one of identity, sigmoid, "),
        (abs, TypeError, "activation is builtin_function_or_method; expected the name of one"),
        ("softmax", ValueError, "one label, whose softmax is always 1"),
    ):
        with pytest.raises(error, match=message):
            bert.predict([], activation=activation)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ("a bird", TypeError, r"pairs is one str; expected pairs of strings: write \[\(query, document\)\]"),
        (["a", "b", "c"], TypeError, "pairs is 3 strings; expected pairs of strings"),
        (["a"], TypeError, "pairs is 1 strings"),
        ([("a", "b"), "ab"], TypeError, r"pairs\[1\] is str; expected a pair of strings: write \(query, document\)"),
        ([("a", "b"), 3], TypeError, r"pairs\[1\] is int; expected a pair of strings"),
        ([("a", "b"), ("a", "b", "c")], ValueError, r"pairs\[1\] has 3 items; expected 2: \(query, document\)"),
        ([("a",)], ValueError, r"pairs\[0\] has 1 items; expected 2"),
        ([("a", None)], TypeError, r"pairs\[0\]\[1\] is NoneType; expected str"),
        (["a", None], TypeError, r"pairs\[1\] is NoneType; expected str"),
        ([(b"a", "b")], TypeError, r"pairs\[0\]\[0\] is bytes; expected str"),
        ([("a", "\ud800")], UnicodeError, r"pairs\[0\]\[1\] cannot be written as UTF-8"),
    ],
)
def test_what_is_not_a_pair_of_strings_is_refused_by_its_place(bert, pairs, error, message):
    for call in (bert.predict, bert):
        with pytest.raises(error, match=message):
            call(pairs)


def test_the_repr_shows_settings_and_shapes(bert):
    text = repr(bert)
    assert text.startswith(f"CrossEncoder(labels=1, max_seq_length={LIMIT}, activation=sigmoid)\n")
    assert "head: ClassificationHead" in text


def test_progress_is_a_bar_only_when_asked_for(bert, capsys):
    bert.predict([("a", "b")], progress=False)
    assert capsys.readouterr() == ("", "")
    bert.predict([("a", "b"), ("a", "c")], progress=True)
    assert "2/2" in capsys.readouterr().err
