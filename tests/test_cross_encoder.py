"""CrossEncoder against transformers and sentence-transformers, with small random models of every family."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import mha_core.models.heads as heads
import mha_core.models.packing as packing
from conftest import mha
from small_models import FAMILIES, reference_logits, texts, write_model

each_family = pytest.mark.parametrize("kind", FAMILIES)
LIMIT = 150  # tokens of a pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function to the directory of a family's model with one label, which is made once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = write(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return of


@pytest.fixture(scope="module")
def bert(folder):
    return mha.CrossEncoder.from_pretrained(folder("bert"), backend="numpy")


def write(folder, kind="bert", num_labels=1, **settings):
    """Write a model whose tokenizer cuts pairs at LIMIT tokens, for us and for transformers."""
    write_model(folder, kind, num_labels=num_labels, **settings)
    rewrite(folder / "tokenizer_config.json", model_max_length=LIMIT)
    return folder


def rewrite(path, without=(), **changes):
    config = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in without}))


def theirs(folder):
    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


@pytest.fixture
def pairs(rng):
    """Pairs of many lengths, none longer than LIMIT, some with empty texts."""
    some = texts(rng)[:6]
    chosen = [(a, b) for a in some for b in some]
    return [("a bird", ""), *chosen, ("the bird", "the bird"), ("the bird", "the bird")]


def close(found, expected, atol):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=atol)


# scores


@pytest.mark.parametrize("backend", ["numpy", "torch", "array_api_strict"])
@each_family
def test_logits_equal_those_of_transformers(folder, kind, backend, pairs):
    model, expected = mha.CrossEncoder.from_pretrained(folder(kind), backend=backend, dtype="float64"), reference_logits
    evaluate = expected(folder(kind))
    some = pairs[::3]
    logits = model(some)
    assert logits.dtype == model.backend.xp.float64
    close(model.backend.to_numpy(logits), [evaluate(*pair)[0] for pair in some], 1e-10)


@each_family
def test_scores_equal_those_of_sentence_transformers(folder, kind, pairs):
    expected = theirs(folder(kind)).predict(pairs)
    assert 0 < expected.min() < expected.max() < 1
    found = mha.CrossEncoder.from_pretrained(folder(kind), dtype="float64").predict(pairs)
    assert (found.dtype, found.shape) == (np.float32, (len(pairs),))
    close(found, expected, 1e-6)
    for backend in ("numpy", "torch"):
        model = mha.CrossEncoder.from_pretrained(folder(kind), backend=backend)
        scores = model.predict(pairs)
        assert scores.dtype == model.backend.xp.float32
        close(scores, expected, 1e-5)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "distilbert"])
def test_a_model_with_several_labels_gives_logits_of_each(tmp_path, kind, pairs):
    source = write(tmp_path / "m", kind, num_labels=3)
    model, expected = mha.CrossEncoder.from_pretrained(source, dtype="float64"), theirs(source)
    assert (model.num_labels, model.activation) == (3, "identity")
    found = model.predict(pairs)
    assert found.shape == (len(pairs), 3)
    close(found, expected.predict(pairs), 1e-6)
    close(model.predict(pairs, activation="softmax"), expected.predict(pairs, apply_softmax=True), 1e-6)
    close(model.predict(pairs[3]), expected.predict(pairs[3]), 1e-6)
    assert model.predict([]).shape == (0, 3)
    assert model(pairs).shape == (len(pairs), 3)


def test_token_types_tell_the_texts_of_a_pair_apart(folder, bert):
    pair = ("the bird sings", "the bird sings")
    path = folder("bert")
    same = replace(bert, tokenizer=replace(bert.tokenizer, gives_type_ids=False))
    assert abs(bert.predict(pair) - same.predict(pair)) > 1e-3
    close(bert.predict(pair, activation="identity"), reference_logits(path)(*pair)[0], 1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]},
        {"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]},
    ],
)
def test_type_ids_are_given_to_the_model_where_transformers_does(tmp_path, config):
    source = write(tmp_path / "m")
    rewrite(source / "tokenizer_config.json", without=["model_input_names"])
    rewrite(source / "tokenizer_config.json", **config)
    expected = "token_type_ids" in AutoTokenizer.from_pretrained(source)("a", "b")
    assert mha.CrossEncoder.from_pretrained(source).tokenizer.gives_type_ids == expected


def test_half_precision_gives_scores_in_float32(folder, bert, pairs):
    for backend, dtype in (("numpy", "float16"), ("torch", "bfloat16")):
        scores = mha.CrossEncoder.from_pretrained(folder("bert"), backend=backend, dtype=dtype).predict(pairs)
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
    queries, documents = ["a bird", "the tree"], ["sings", "at dawn"]
    expected = bert.predict([("a bird", "sings"), ("the tree", "at dawn")])
    for pairs in (
        zip(queries, documents, strict=True),
        np.array([queries, documents]).T,
        [["a bird", "sings"], ("the tree", "at dawn")],
    ):
        np.testing.assert_array_equal(bert.predict(pairs), expected)
    for nothing in ([], iter([])):
        assert bert.predict(nothing).shape == bert(nothing).shape == (0,)
        assert bert.predict(nothing).dtype == np.float32


# truncation


@each_family
def test_long_pairs_are_cut_as_by_sentence_transformers_with_one_warning(folder, kind):
    long, short = "the bird sings at dawn. " * 40, "a small tree"
    pairs = [(long, short), (short, long), (long, long[4:]), (long[4:], long), (short, short), (long, "")]
    model = mha.CrossEncoder.from_pretrained(folder(kind), dtype="float64")
    assert model.max_seq_length == LIMIT
    with pytest.warns(
        mha.TruncationWarning, match=f"^5 of 6 pairs are longer than {LIMIT} tokens, and were cut there$"
    ) as caught:
        found = model.predict(pairs)
    assert [warning.filename for warning in caught] == [__file__]
    close(found, theirs(folder(kind)).predict(pairs), 1e-6)


def test_every_call_warns_the_caller(bert):
    long = "the bird sings at dawn. " * 40
    for call in (lambda: bert([(long, "a")]), lambda: bert.rank("a", [long]), lambda: bert.predict(("a", long))):
        with pytest.warns(mha.TruncationWarning, match="^1 of 1 pairs ") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


def test_a_limit_below_the_special_tokens_of_a_pair_is_refused(tmp_path):
    source = write(tmp_path / "m", "roberta")
    rewrite(source / "sentence_bert_config.json", max_seq_length=3)
    with pytest.raises(mha.ModelError, match="max_seq_length is 3; expected 4 to 300"):
        mha.CrossEncoder.from_pretrained(source)


# activations


@pytest.mark.parametrize("name", ["identity", "sigmoid", "tanh", "relu"])
def test_an_activation_by_name(bert, pairs, name):
    logits = np.asarray(bert(pairs), dtype=np.float64)
    expected = {
        "identity": logits,
        "sigmoid": 1 / (1 + np.exp(-logits)),
        "tanh": np.tanh(logits),
        "relu": np.maximum(logits, 0),
    }
    close(bert.predict(pairs, activation=name), expected[name], 1e-5)


def test_sigmoid_is_exact_in_its_tails():
    from mha_core.models.scores import scores

    logits = np.array([[-1000.0], [-80.0], [0.0], [30.0], [1000.0]])
    np.testing.assert_allclose(scores(np, logits, "sigmoid"), [0, np.exp(-80.0), 0.5, 1 - np.exp(-30.0), 1], rtol=1e-15)


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "5.0.0"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
        },
    ],
)
def test_the_activation_of_config_json_is_that_of_sentence_transformers(tmp_path, pairs, changes):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", **changes)
    found = mha.CrossEncoder.from_pretrained(source, dtype="float64").predict(pairs)
    close(found, theirs(source).predict(pairs), 1e-6)


@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Sigmoid(), torch.nn.ReLU()])
def test_a_directory_written_by_sentence_transformers(folder, tmp_path, pairs, activation):
    model = CrossEncoder(str(folder("roberta")), device="cpu", activation_fn=activation)
    model.save_pretrained(str(tmp_path / "m"))
    assert (tmp_path / "m" / "modules.json").exists()
    found = mha.CrossEncoder.from_pretrained(tmp_path / "m", dtype="float64").predict(pairs)
    close(found, theirs(tmp_path / "m").predict(pairs), 1e-6)


@pytest.mark.parametrize("value", ["torch.nn.modules.activation.GELU", "mine.Sigmoid", "Sigmoid", 3])
def test_other_activations_are_refused_by_name(tmp_path, value):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", sentence_transformers={"activation_fn": value})
    with pytest.raises(mha.ModelError, match=rf"config.json: activation_fn is {value!r}; supported: torch.nn.Identity, "):
        mha.CrossEncoder.from_pretrained(source)


def test_activations_that_cannot_be_used_are_refused(bert):
    with pytest.raises(ValueError, match="activation is 'sigmod'; expected one of identity, sigmoid, "):
        bert.predict([], activation="sigmod")
    with pytest.raises(TypeError, match="activation is function; expected the name of one"):
        bert.predict([], activation=lambda x: x)
    with pytest.raises(ValueError, match="one label, whose softmax is always 1"):
        bert.predict([], activation="softmax")


# rank


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_rank_equals_that_of_sentence_transformers(folder, kind, sentences):
    query, documents = "birds that sleep on the wing", [text[:60] for text in sentences[::12]]
    model = mha.CrossEncoder.from_pretrained(folder(kind), dtype="float64")
    for top_k in (None, 3, 1000):
        found = model.rank(query, documents, top_k)
        expected = theirs(folder(kind)).rank(query, documents, top_k)
        assert [hit.corpus_id for hit in found] == [hit["corpus_id"] for hit in expected]
        close([hit.score for hit in found], [hit["score"] for hit in expected], 1e-6)
        assert {hit.text for hit in found} == {None}
    for hit in model.rank(query, documents, 5, return_documents=True):
        assert hit.text == documents[hit.corpus_id]


def test_equal_scores_are_ranked_in_the_order_given(bert):
    head = replace(bert.model.head, w_out=np.zeros_like(bert.model.head.w_out))
    equal = replace(bert, model=replace(bert.model, head=head))
    found = equal.rank("a bird", ["sings", "", "at dawn", "the tree", "sings"], 4)
    assert [hit.corpus_id for hit in found] == [0, 1, 2, 3]
    assert len({hit.score for hit in found}) == 1
    assert equal.rank("a bird", []) == []


def test_rank_refuses_what_it_cannot_rank(bert, tmp_path):
    with pytest.raises(TypeError, match=r"documents is one str; expected a list of strings: write \[document\]"):
        bert.rank("a", "b")
    with pytest.raises(TypeError, match="query is int; expected str"):
        bert.rank(3, ["b"])
    with pytest.raises(TypeError, match=r"documents\[1\] is NoneType; expected str"):
        bert.rank("a", ["b", None])
    with pytest.raises(ValueError, match="top_k is 0; expected an int of at least 1"):
        bert.rank("a", ["b"], 0)
    several = mha.CrossEncoder.from_pretrained(write(tmp_path / "m", num_labels=2))
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
    with pytest.raises(TypeError, match="from_pretrained\\(\\) has no max_length: write max_seq_length into "):
        mha.CrossEncoder.from_pretrained("nowhere", max_length=512)


def test_an_encoder_without_a_head_is_refused_with_the_class_to_use(tmp_path):
    source = write_model(tmp_path / "m", "bert")
    with pytest.raises(
        mha.ModelError, match=r"has no classifier\.weight: it is an encoder without a .*TextEncoder\.from_pretrained"
    ):
        mha.CrossEncoder.from_pretrained(source)


def test_a_text_encoder_reads_the_directory_of_a_cross_encoder(folder):
    assert mha.TextEncoder.from_pretrained(folder("bert")).encode(["a bird"]).shape == (1, 32)


def test_a_family_without_a_head_is_refused(tmp_path):
    source = write(tmp_path / "m")
    rewrite(source / "config.json", model_type="t5")
    with pytest.raises(mha.ModelError, match="model_type is 't5'; supported: bert, roberta, "):
        mha.CrossEncoder.from_pretrained(source)


@each_family
def test_a_missing_weight_of_a_head_is_reported_by_name(tmp_path, kind):
    path = write(tmp_path / "m", kind) / "model.safetensors"
    weights = load_file(path)
    head = heads.HEADS[kind]
    for name in (f"{head.dense}.weight", f"{head.dense}.bias", f"{head.classifier}.bias"):
        save_file({each: x for each, x in weights.items() if each != name}, path)
        with pytest.raises(mha.ModelError, match=f"{name} is missing"):
            mha.CrossEncoder.from_pretrained(path.parent)


def test_labels_that_do_not_fit_are_refused(tmp_path):
    source = write(tmp_path / "m", num_labels=3)
    rewrite(source / "config.json", without=["id2label"])
    with pytest.raises(mha.ModelError, match=r"classifier\.weight has shape \(3, 32\), expected \(2, 32\)"):
        mha.CrossEncoder.from_pretrained(source)  # 2 is transformers' default
    rewrite(source / "config.json", num_labels=3)
    assert mha.CrossEncoder.from_pretrained(source).num_labels == 3


def test_an_unknown_module_is_refused_by_name(tmp_path):
    source = write(tmp_path / "m")
    (source / "modules.json").write_text(json.dumps([{"type": f"st.{name}"} for name in ("Transformer", "Dense")]))
    rewrite(source / "config_sentence_transformers.json", model_type="CrossEncoder")
    with pytest.raises(mha.ModelError, match=r"modules\.json: module type is 'Dense'; supported: Transformer, LogitScore"):
        mha.CrossEncoder.from_pretrained(source)


# heads that no family above has


def test_a_head_may_have_a_norm_another_pooling_and_no_biases(tmp_path, monkeypatch, rng):
    source = write(tmp_path / "m", num_labels=2)
    head = heads.Head(
        "head.dense",
        "score",
        activation="head_activation",
        pooling="head_pooling",
        norm="head.norm",
        dense_bias="head_bias",
        norm_bias=False,
        classifier_bias=False,
    )
    monkeypatch.setitem(heads.HEADS, "bert", head)
    rewrite(source / "config.json", head_activation="relu", head_pooling="mean", head_bias=False)
    made = {"head.dense": rng.normal(size=(32, 32)), "score": rng.normal(size=(2, 32)), "head.norm": rng.normal(size=32)}
    weights = load_file(source / "model.safetensors")
    save_file(weights | {f"{name}.weight": x for name, x in made.items()}, source / "model.safetensors")
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    pair = ("a bird sings", "the tree")
    (tokens,), _ = model.tokenizer.pairs([pair])
    ids, types = np.asarray(tokens.ids), np.asarray(tokens.type_ids)
    x = model.model.text(ids, np.arange(len(ids)), token_type_ids=types).mean(axis=0)
    x = np.maximum(x @ made["head.dense"].T, 0)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12) * made["head.norm"]
    close(model(pair), x @ made["score"].T, 1e-10)
    rewrite(source / "config.json", head_pooling="max")
    with pytest.raises(mha.ModelError, match="head_pooling is 'max'; supported: cls, mean"):
        mha.CrossEncoder.from_pretrained(source)
    rewrite(source / "config.json", head_pooling="cls", head_bias=True)
    with pytest.raises(mha.ModelError, match=r"head\.dense\.bias is missing"):
        mha.CrossEncoder.from_pretrained(source)
    monkeypatch.setitem(heads.HEADS, "bert", replace(head, dense=None, norm=None))
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    close(model(pair), model.model.text(ids, np.arange(len(ids)), token_type_ids=types)[0] @ made["score"].T, 1e-10)


# training, writing and pickling


@pytest.mark.parametrize("kind", ["bert", "electra", "mpnet"])
def test_gradients_equal_those_of_transformers(folder, kind, pairs, rng):
    some, source = pairs[::5], folder(kind)
    model = mha.CrossEncoder.from_pretrained(source, dtype="float64")
    logits, pullback = mha.vjp(model, some)
    d = rng.standard_normal(logits.shape)
    gradients, of_pairs = pullback(d)
    assert of_pairs is None
    found = gradients.model.arrays()
    assert set(found) == set(model.model.arrays())
    reference = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float64).eval()
    tokens = AutoTokenizer.from_pretrained(source)(some, padding=True, return_tensors="pt")
    reference(**tokens).logits[:, 0].backward(torch.asarray(d))
    expected = {name: x.grad for name, x in reference.named_parameters() if x.grad is not None}
    named = {
        "text.words": "embeddings.word_embeddings.weight",
        "head.w": f"{heads.HEADS[kind].dense}.weight",
        "head.w_out": f"{heads.HEADS[kind].classifier}.weight",
    }
    if kind != "mpnet":
        named["text.token_types"] = "embeddings.token_type_embeddings.weight"
    for ours, end in named.items():
        (there,) = (x.numpy() for name, x in expected.items() if name.endswith(end))
        there = there.T if ours.startswith("head") else there
        padding = {"bert": 0, "electra": 0, "mpnet": 1}[kind]
        here = np.asarray(found[ours]).copy()
        if ours == "text.words":
            here[padding], there[padding] = 0, 0  # torch's embedding has no gradient there
        close(here, there, 1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_steps_of_an_optimiser_reduce_the_loss_of_a_ranking(folder, backend):
    model = mha.CrossEncoder.from_pretrained(folder("bert"), backend=backend)
    pairs, right = [("a bird", "sings"), ("a bird", "at dawn"), ("a bird", "the tree")], model.backend.xp.asarray([2])
    optimiser = mha.AdamW(learning_rate=1e-3)
    state, losses = optimiser.init(model), []
    for _ in range(4):
        loss, gradients = mha.value_and_grad(lambda model: mha.cross_entropy(model(pairs)[None, :], right))(model)
        model, state = optimiser.step(model, gradients, state)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "xlm-roberta"])
def test_a_changed_model_is_read_back_by_us_and_by_sentence_transformers(folder, kind, tmp_path, pairs):
    model = mha.CrossEncoder.from_pretrained(folder(kind))
    changed = replace(model, model=model.model.map(lambda x: x + np.float32(0.01)))
    changed.save_pretrained(tmp_path / "out")
    expected = changed.predict(pairs)
    assert np.abs(expected - model.predict(pairs)).max() > 1e-3
    np.testing.assert_array_equal(mha.CrossEncoder.from_pretrained(tmp_path / "out").predict(pairs), expected)
    close(theirs(tmp_path / "out").predict(pairs), expected, 1e-5)
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(load_file(folder(kind) / "model.safetensors"))


def test_pickling_stores_the_path_or_the_changed_arrays(bert, pairs):
    pickled = pickle.dumps(bert)
    assert len(pickled) < 600
    first, second = pickle.loads(pickled), pickle.loads(pickled)
    assert first is second
    changed = replace(bert, model=bert.model.map(lambda x: x * np.float32(1.01)))
    for model in (bert, changed):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(pairs), model.predict(pairs))


def test_the_repr_shows_settings_and_shapes(bert):
    first, *rest = repr(bert).splitlines()
    assert first == f"CrossEncoder(labels=1, max_seq_length={LIMIT}, activation=sigmoid)"
    assert "head: ClassificationHead" in "\n".join(rest)


def test_progress_is_a_bar_only_when_asked_for(bert, capsys):
    bert.predict([("a", "b")], progress=False)
    assert capsys.readouterr() == ("", "")
    bert.predict([("a", "b"), ("a", "c")], progress=True)
    assert "2/2" in capsys.readouterr().err
