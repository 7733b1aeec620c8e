"""semantic_search and ``mha search``: against all cosines at once, on every backend, from arrays and from files."""

import json

import needs
import numpy as np
import pytest
from command import fails, ok, run
from tested_backends import BACKENDS
from tiny_models import close, edit
from written_texts import TEXTS, write

import mha_text as mt
from mha_core.dispatch.backend import load
from mha_text.corpus.stored import npy_writer


def cosines(queries, corpus):
    q, c = (np.asarray(x, np.float64) for x in (queries, corpus))
    norms = [np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (q, c)]
    return (q / norms[0]) @ (c / norms[1]).T


@pytest.fixture
def problem():
    rng = np.random.default_rng(7)
    corpus = rng.normal(size=(9000, 16)).astype(np.float32)
    corpus[17] = 0
    corpus[8500] = corpus[3] * 2  # the same cosine in another block
    queries = np.concatenate([rng.normal(size=(6, 16)), corpus[3:4]]).astype(np.float32)
    return queries, corpus


def agrees(results, queries, corpus, top_k):
    exact = cosines(queries, corpus)
    for row, hits in zip(exact, results, strict=True):
        assert len({hit.id for hit in hits}) == len(hits) == min(top_k, len(corpus))
        close([hit.score for hit in hits], -np.sort(-row)[:top_k])
        close([hit.score for hit in hits], row[[hit.id for hit in hits]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_nearest_are_those_of_all_cosines(problem, backend):
    loaded = load(backend)
    queries, corpus = problem
    count = 9000 if backend == "numpy" else 5000
    results = mt.semantic_search(loaded.from_numpy(queries), loaded.from_numpy(corpus[:count]), top_k=10)
    agrees(results, queries, corpus[:count], 10)


def test_of_equal_scores_the_first_comes_first(problem):
    queries, corpus = problem
    hits = mt.semantic_search(queries[-1:], corpus, 2)[0]
    assert [hit.id for hit in hits] == [3, 8500]
    assert [hit.id for hit in mt.semantic_search(np.ones((1, 2)), np.ones((5, 2)), 3)[0]] == [0, 1, 2]


def test_a_corpus_in_a_file_is_read_in_blocks(problem, tmp_path):
    queries, corpus = problem
    with npy_writer(tmp_path / "x.npy") as append:
        append(corpus)
    assert mt.semantic_search(queries, tmp_path / "x.npy", 10) == mt.semantic_search(queries, corpus, 10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_vector_is_one_query(problem, backend, tmp_path):
    loaded = load(backend)
    queries, corpus = (loaded.from_numpy(x[:5]) for x in problem)
    np.save(tmp_path / "x.npy", problem[1][:5])
    for where in (corpus, tmp_path / "x.npy"):
        assert mt.semantic_search(queries[2, :], where, 3) == mt.semantic_search(queries[2:3, :], where, 3)


def test_small_and_empty_corpora(problem):
    queries, corpus = problem
    agrees(mt.semantic_search(queries, corpus[:3], 10), queries, corpus[:3], 10)
    assert mt.semantic_search(queries, corpus[:0], 10) == [[]] * 7
    assert mt.semantic_search(queries[:0], corpus, 10) == []


def test_wrong_arguments_are_refused(problem, tmp_path):
    queries, corpus = problem
    for error, message, args in (
        (ValueError, "top_k is 0; expected an int of at least 1", (queries, corpus, 0)),
        (ValueError, r"queries has shape \(1, 7, 16\); expected \(q, d\), one d for both", (queries[None], corpus)),
        (ValueError, r"corpus has shape \(9000, 8\); expected \(n, d\), one d for both", (queries, corpus[:, :8])),
        (TypeError, "queries has dtype int64; expected a floating dtype", (queries.astype(int), corpus)),
        (FileNotFoundError, "does not exist", (queries, tmp_path / "x.npy")),
    ):
        with pytest.raises(error, match=message):
            mt.semantic_search(*args)


def test_vectors_of_nan_are_refused_and_json_has_none(problem, tmp_path, tiny_model, monkeypatch):
    queries, corpus = problem
    for place in (0, 5000, 8999):
        wrong = corpus.copy()
        wrong[place, 3] = np.nan
        np.save(tmp_path / "x.npy", wrong)
        with pytest.raises(mt.CorpusError, match=f"x.npy, row {place + 1}: the vector has NaN or infinity"):
            mt.semantic_search(queries, tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.float32))
    monkeypatch.setattr(mt.TextEncoder, "encode_query", lambda *_, **__: np.full((1, 8), np.nan, np.float32))
    message = "the vectors of the queries have NaN or infinity"
    assert message in fails(1, "search", "a", "--in", tmp_path / "x.npy", "--model", tiny_model, "--json")


pyarrow = needs.installed("pyarrow")


@pytest.fixture
def encoded(tiny_model, tmp_path):
    """A folder with texts as lines and as a table, and their vectors as an array and as a folder with ids."""
    write(tmp_path / "x.txt", TEXTS)
    write(tmp_path / "x.parquet", TEXTS, [f"id {at}" for at in range(23)])
    run("encode", "-m", tiny_model, tmp_path / "x.txt", "-o", tmp_path / "x.npy")
    ok("encode", "-m", tiny_model, tmp_path / "x.parquet", "--column", "text", "--id", "key", "-o", tmp_path / "out")
    return tmp_path


@pyarrow
def test_the_command_searches_an_array_and_a_folder(encoded, tiny_model):
    command = ("search", "a bird sings", "dawn", "-m", tiny_model, "-k", "2", "--in")
    vectors = mt.TextEncoder.from_pretrained(tiny_model).encode(["a bird sings", "dawn"])
    hits = mt.semantic_search(vectors, encoded / "x.npy", 2)
    for path, texts, name in ((encoded / "x.npy", "x.txt", "{}"), (encoded / "out", "x.parquet", "id {}")):
        ids = [[name.format(hit.id) for hit in row] for row in hits]
        done = run(*command, path)
        lines = done.stdout.splitlines()
        assert lines[::3] == ["a bird sings", "dawn"]
        assert lines[1] == f"  {hits[0][0].score:.3f}  {ids[0][0]}"
        note = "to print the texts too, name the files that were encoded: --texts FILE\n"
        assert (done.exit_code, done.stderr) == (0, note)
        assert not run(*command, path, "--json").stderr
        lines = ok(*command, path, "--texts", encoded / texts).splitlines()
        assert lines[1] == f"  {hits[0][0].score:.3f}  {ids[0][0]}  {TEXTS[hits[0][0].id]}"
        records = [json.loads(line) for line in ok(*command, path, "--texts", encoded / texts, "--json").splitlines()]
        assert [record["query"] for record in records] == ["a bird sings", "dawn"]
        assert [[str(hit["id"]) for hit in record["hits"]] for record in records] == ids
        assert records[1]["hits"][0]["text"] == TEXTS[hits[1][0].id]


@pyarrow
def test_texts_that_are_not_those_of_the_vectors_are_refused(encoded, tiny_model):
    write(encoded / "more.txt", [*TEXTS, "dawn"])
    write(encoded / "few.parquet", TEXTS[:3], ["id 0", "id 1", "id 2"])
    write(encoded / "other.parquet", TEXTS, [f"other {at}" for at in range(23)])
    write(encoded / "one.txt", TEXTS[:1])
    remedy = "give --texts the files that were encoded, in the same order\n"
    for path, texts, message in (
        ("x.npy", ["more.txt"], f"x.npy has 23 vectors, but {encoded / 'more.txt'} has 24 lines: {remedy}"),
        ("x.npy", ["one.txt"], f"x.npy has 23 vectors, but {encoded / 'one.txt'} has 1 line: {remedy}"),
        ("x.npy", ["x.txt", "more.txt"], f"x.npy has 23 vectors, but the 2 files of --texts have 47 lines: {remedy}"),
        ("out", ["few.parquet"], f"out has 23 rows, but {encoded / 'few.parquet'} has 3 rows: {remedy}"),
        ("out", ["other.parquet"], "has no text for it: "),
    ):
        named = [part for name in texts for part in ("--texts", encoded / name)]
        assert message in fails(1, "search", "a bird", "-m", tiny_model, "--in", encoded / path, *named)


@pyarrow
def test_queries_have_their_prompt_and_are_cut_as_the_corpus_was(tiny_model, tmp_path):
    prompts = {"query": "a bird ", "document": "the tree "}
    edit(tiny_model / "config_sentence_transformers.json", prompts=prompts)
    encoder, model = mt.TextEncoder.from_pretrained(tiny_model), ("-m", tiny_model)
    texts = [text for text in TEXTS if 0 < len(text.split()) < 5]
    write(tmp_path / "x.txt", texts)
    for out in ("out", "x.npy"):
        ok("encode", *model, tmp_path / "x.txt", "-o", tmp_path / out, "--prompt-name", "document", "--truncate-dim", "5")
    corpus = encoder.encode_document(texts, truncate_dim=5)
    close(np.load(tmp_path / "x.npy"), corpus)

    for prompt, arguments in (
        ("a bird ", (tmp_path / "out",)),
        ("a bird ", (tmp_path / "x.npy", "--truncate-dim", "5")),
        ("sings ", (tmp_path / "out", "--prompt", "sings ")),
        ("the tree ", (tmp_path / "out", "--prompt-name", "document")),
    ):
        expected = cosines(encoder.encode(["dawn"], truncate_dim=5, prompt=prompt), corpus)[0]
        hits = json.loads(ok("search", "dawn", *model, "--json", "-k", "23", "--in", *arguments))["hits"]
        assert {hit["id"]: hit["score"] for hit in hits} == pytest.approx(dict(enumerate(expected)), abs=2e-6)
    missing = fails(1, "search", "dawn", *model, "--in", tmp_path / "y.npy")
    assert "does not exist; expected a .npy file, or a folder that mha encode wrote" in missing
    message = fails(1, "search", "dawn", *model, "--in", tmp_path / "x.npy")
    assert "have 5 numbers, those of the model 8: another model made them, or they were cut: add --truncate-dim 5" in message
    unknown = fails(1, "search", "a", *model, "--in", tmp_path / "out", "--prompt-name", "x")
    assert "the model has the prompts query, document" in unknown
