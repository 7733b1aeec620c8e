"""CrossEncoder against transformers and sentence-transformers, with small random models of every family."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cross_models import LIMIT, close, reference, write
from small_models import FAMILIES, reference_logits
from tiny_models import edit
from transformers import AutoTokenizer

import mha_text as mt
import mha_text.models.packing as packing
from mha_text.models.scores import scores as scores_of

each_family = pytest.mark.parametrize("kind", FAMILIES)


@pytest.fixture
def bert(cross_folder):
    return mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")


# scores


@pytest.mark.parametrize("backend", ["numpy", "torch", "array_api_strict"])
@each_family
def test_logits_equal_those_of_transformers(cross_folder, kind, backend, pairs):
    model = mt.CrossEncoder.from_pretrained(cross_folder(kind), backend=backend, dtype="float64")
    evaluate = reference_logits(cross_folder(kind))
    logits = model(pairs[::3])
    assert logits.dtype == model.backend.xp.float64
    close(model.backend.to_numpy(logits), [evaluate(*pair)[0] for pair in pairs[::3]], 1e-10)


@each_family
def test_scores_equal_those_of_sentence_transformers(cross_folder, kind, pairs):
    expected = reference(cross_folder(kind)).predict(pairs)
    assert 0 < expected.min() < expected.max() < 1
    scores = mt.CrossEncoder.from_pretrained(cross_folder(kind), dtype="float64").predict(pairs)
    assert (scores.dtype, scores.shape) == (np.float32, (len(pairs),))
    close(scores, expected, 1e-6)
    for backend in ("numpy", "torch"):
        model = mt.CrossEncoder.from_pretrained(cross_folder(kind), backend=backend)
        scores = model.predict(pairs)
        assert scores.dtype == model.backend.xp.float32
        close(scores, expected, 1e-5)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "distilbert"])
def test_a_model_with_several_labels_gives_logits_of_each(tmp_path, kind, pairs):
    source = write(tmp_path / "m", kind, num_labels=3)
    model, expected = mt.CrossEncoder.from_pretrained(source, dtype="float64"), reference(source)
    assert (model.num_labels, model.activation) == (3, "identity")
    scores = model.predict(pairs)
    assert scores.shape == (len(pairs), 3)
    close(scores, expected.predict(pairs), 1e-6)
    close(model.predict(pairs, activation="softmax"), expected.predict(pairs, apply_softmax=True), 1e-6)
    close(model.predict(pairs[3]), expected.predict(pairs[3]), 1e-6)
    assert model.predict([]).shape == (0, 3)
    assert model(pairs).shape == (len(pairs), 3)


def test_token_types_tell_the_texts_of_a_pair_apart(cross_folder, bert):
    pair = ("the bird sings", "the bird sings")
    path = cross_folder("bert")
    same = replace(bert, tokenizer=replace(bert.tokenizer, gives_type_ids=False))
    assert abs(bert.predict(pair) - same.predict(pair)) > 1e-3
    close(bert.predict(pair, activation="identity"), reference_logits(path)(*pair)[0], 1e-5)


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
    source = write(tmp_path / "m")
    edit(
        source / "tokenizer_config.json", ["model_input_names"] * (names is None), tokenizer_class=kind, model_input_names=names
    )
    expected = "token_type_ids" in AutoTokenizer.from_pretrained(source)("a", "b")
    assert mt.CrossEncoder.from_pretrained(source).tokenizer.gives_type_ids == expected


def test_half_precision_gives_scores_in_float32(cross_folder, bert, pairs):
    for backend, dtype in (("numpy", "float16"), ("torch", "bfloat16")):
        scores = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend=backend, dtype=dtype).predict(pairs)
        assert str(scores.dtype).endswith("float32")
        close(scores, bert.predict(pairs), 0.1)


def test_the_order_and_the_batches_do_not_matter(bert, pairs, monkeypatch, rng):
    expected = bert.predict(pairs)
    order = rng.permutation(len(pairs))
    close(bert.predict([pairs[at] for at in order]), expected[order], 1e-6)
    close([bert.predict(pair) for pair in pairs], expected, 1e-6)
    for tokens, window in ((1, 5), (100, 7), (10**6, 10**6)):
        monkeypatch.setattr(packing, "TOKENS", tokens)
        monkeypatch.setattr(packing, "WINDOW", window)
        close(bert.predict(pairs), expected, 1e-6)
        close(bert(pairs), bert.predict(pairs, activation="identity"), 1e-5)


def test_one_pair_gives_a_scalar(bert):
    for pair in (("a bird", "sings"), ["a bird", "sings"], np.array(["a bird", "sings"])):
        score = bert.predict(pair)
        assert score.shape == ()
        close(score, bert.predict([("a bird", "sings")])[0], 1e-7)
    assert bert(("a bird", "sings")).shape == ()


def test_pairs_come_from_any_iterable(bert):
    pairs = [("a bird", "sings"), ("the tree", "at dawn")]
    for same in (iter(pairs), np.array(pairs), [["a bird", "sings"], pairs[1]]):
        np.testing.assert_array_equal(bert.predict(same), bert.predict(pairs))
    for nothing in ([], iter([])):
        assert bert.predict(nothing).shape == bert(nothing).shape == (0,)
        assert bert.predict(nothing).dtype == np.float32


# truncation


@each_family
def test_long_pairs_are_cut_as_by_sentence_transformers_with_one_warning(cross_folder, kind):
    long, short = "the bird sings at dawn. " * 40, "a small tree"
    pairs = [(long, short), (short, long), (long, long[4:]), (long[4:], long), (short, short), (long, "")]
    model = mt.CrossEncoder.from_pretrained(cross_folder(kind), dtype="float64")
    assert model.max_seq_length == LIMIT
    message = f"^5 of 6 pairs are longer than {LIMIT} tokens, and were cut there$"
    with pytest.warns(mt.TruncationWarning, match=message) as caught:
        scores = model.predict(pairs)
    assert [warning.filename for warning in caught] == [__file__]
    close(scores, reference(cross_folder(kind)).predict(pairs), 1e-6)


def test_every_call_warns_the_caller(bert):
    long = "the bird sings at dawn. " * 40
    for call in (lambda: bert([(long, "a")]), lambda: bert.rank("a", [long]), lambda: bert.predict(("a", long))):
        with pytest.warns(mt.TruncationWarning, match="^1 of 1 pairs ") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


# activations


@pytest.mark.parametrize("name", ["identity", "sigmoid", "tanh", "relu"])
def test_an_activation_by_name(bert, pairs, name):
    logits = np.asarray(bert(pairs), dtype=np.float64)
    sigmoid = 1 / (1 + np.exp(-logits))
    expected = {"identity": logits, "sigmoid": sigmoid, "tanh": np.tanh(logits), "relu": np.maximum(logits, 0)}
    close(bert.predict(pairs, activation=name), expected[name], 1e-5)


def test_sigmoid_is_exact_in_its_tails():
    logits = np.array([[-1000.0], [-80.0], [0.0], [30.0], [1000.0]])
    np.testing.assert_allclose(scores_of(np, logits, "sigmoid"), [0, np.exp(-80.0), 0.5, 1 - np.exp(-30.0), 1], rtol=1e-15)


def test_activations_that_cannot_be_used_are_refused(bert):
    for activation, error, message in (
        ("sigmod", ValueError, "activation is 'sigmod'; expected one of identity, sigmoid, "),
        (abs, TypeError, "activation is builtin_function_or_method; expected the name of one"),
        ("softmax", ValueError, "one label, whose softmax is always 1"),
    ):
        with pytest.raises(error, match=message):
            bert.predict([], activation=activation)


# rank


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_rank_equals_that_of_sentence_transformers(cross_folder, kind, sentences):
    query, documents = "birds that sleep on the wing", [text[:60] for text in sentences[::12]]
    model = mt.CrossEncoder.from_pretrained(cross_folder(kind), dtype="float64")
    for top_k in (None, 3, 1000):
        hits = model.rank(query, documents, top_k)
        expected = reference(cross_folder(kind)).rank(query, documents, top_k)
        assert [(hit.corpus_id, hit.text) for hit in hits] == [(hit["corpus_id"], None) for hit in expected]
        close([hit.score for hit in hits], [hit["score"] for hit in expected], 1e-6)
    for hit in model.rank(query, documents, 5, return_documents=True):
        assert hit.text == documents[hit.corpus_id]


def test_equal_scores_are_ranked_in_the_order_given(bert):
    head = replace(bert.model.head, w_out=np.zeros_like(bert.model.head.w_out))
    equal = replace(bert, model=replace(bert.model, head=head))
    hits = equal.rank("a bird", ["sings", "", "at dawn", "the tree", "sings"], 4)
    assert [hit.corpus_id for hit in hits] == [0, 1, 2, 3] and len({hit.score for hit in hits}) == 1
    assert equal.rank("a bird", []) == []


def test_rank_refuses_what_it_cannot_rank(bert, tmp_path):
    for arguments, error, message in (
        (("a", "b"), TypeError, r"documents is one str; expected a list of strings: write \[document\]"),
        ((3, ["b"]), TypeError, "query is int; expected str"),
        (("a", ["b", None]), TypeError, r"documents\[1\] is NoneType; expected str"),
        (("a", ["b"], 0), ValueError, "top_k is 0; expected an int of at least 1"),
    ):
        with pytest.raises(error, match=message):
            bert.rank(*arguments)
    several = mt.CrossEncoder.from_pretrained(write(tmp_path / "m", num_labels=2))
    with pytest.raises(ValueError, match="the model has 2 labels; rank needs a model with one: use predict"):
        several.rank("a", ["b"])


# errors


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


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"batch_size": 8}, "leave it out"),
        ({"show_progress_bar": False}, "write progress="),
        ({"activation_fn": torch.nn.Identity()}, "write activation="),
        ({"apply_softmax": True}, "write activation='softmax'"),
        ({"convert_to_tensor": True}, "backend='torch'"),
        ({"progres": True}, "its options are .*progress; did you mean 'progress'"),
    ],
)
def test_keywords_of_sentence_transformers_are_refused_with_what_to_write(bert, option, hint):
    for call in (lambda: bert.predict([("a", "b")], **option), lambda: bert.rank("a", ["b"], **option)):
        with pytest.raises(TypeError, match=rf"\(\) has no {next(iter(option))}[:;].*{hint}"):
            call()


def test_the_repr_shows_settings_and_shapes(bert):
    text = repr(bert)
    assert text.startswith(f"CrossEncoder(labels=1, max_seq_length={LIMIT}, activation=sigmoid)\n")
    assert "head: ClassificationHead" in text


def test_progress_is_a_bar_only_when_asked_for(bert, capsys):
    bert.predict([("a", "b")], progress=False)
    assert capsys.readouterr() == ("", "")
    bert.predict([("a", "b"), ("a", "c")], progress=True)
    assert "2/2" in capsys.readouterr().err
