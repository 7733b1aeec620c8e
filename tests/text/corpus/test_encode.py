"""encode_corpus in one process: what it writes, what it finds again, and what it refuses."""

import json
import re
import resource
import signal
from dataclasses import replace

import needs
import numpy as np
import pytest
from corpus_kills import contents, table
from tiny_models import close, edit
from written_texts import SUFFIXES, TEXTS, write

import mha_core as mha
import mha_text as mt
from mha_text.corpus import job
from mha_text.corpus.stored import npy_writer, stored_vectors
from mha_text.models.dense import Dense

pytestmark = needs.installed("pyarrow")


@pytest.fixture
def encode(tiny_model, tmp_path):
    """The function that encodes texts.jsonl to out in parts of 5 rows."""

    def run(sources=tmp_path / "texts.jsonl", out=tmp_path / "out", model=tiny_model, **options):
        return mt.encode_corpus(None, sources, out, model, **({"column": "text", "part_rows": 5, "progress": False} | options))

    write(tmp_path / "texts.jsonl", TEXTS, range(100, 123))
    return run


def refuses(error, message, function, **options):
    with pytest.raises(error, match=re.escape(message)):
        function(**options)


# what is written


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_vectors_are_those_of_the_encoder_in_the_order_of_the_texts_with_their_ids(encode, tiny, tmp_path, suffix):
    keys = [f"id {at}" for at in range(23)] if suffix in (".csv", ".tsv") else list(range(100, 123))
    cuts = ((0, 0, 9), (1, 9, 9), (2, 9, 23))
    paths = [write(tmp_path / f"{at}{suffix}", TEXTS[start:stop], keys[start:stop]) for at, start, stop in cuts]
    columns = {"column": None} if suffix == ".txt" else {"column": "text", "id": "key"}
    report = encode(sources=paths, **columns)
    ids, vectors = zip(*stored_vectors(tmp_path / "out").blocks(), strict=True)
    assert [each for block in ids for each in block] == (list(range(23)) if suffix == ".txt" else keys)
    close(np.concatenate(vectors), tiny.encode(TEXTS))
    assert sorted(contents(tmp_path / "out")) == ["_SUCCESS", "_manifest.json", *(f"part-0000{at}.parquet" for at in range(5))]
    tokens, cut = tiny.tokenizer(TEXTS)
    assert (report.texts, report.dim, report.parts, report.rejected, report.reused) == (23, 8, 5, 0, 0)
    assert (report.tokens, report.cut, report.workers) == (sum(map(len, tokens)), cut, 1)


@pytest.mark.parametrize(("precision", "kind"), [("float16", "halffloat"), ("int8", "int8"), ("binary", "uint8")])
def test_vectors_are_stored_in_fewer_bits(encode, tiny, tmp_path, precision, kind):
    encode(precision=precision)
    written = table(tmp_path / "out")
    assert str(written["vector"].type) == f"fixed_size_list<element: {kind}>[{1 if precision == 'binary' else 8}]"
    vectors, stored = tiny.encode(TEXTS), np.concatenate([block for _, block in stored_vectors(tmp_path / "out").blocks()])
    if precision == "binary":
        np.testing.assert_array_equal(stored, np.where(vectors > 0, 1, -1))
    else:
        bound = abs(vectors).max(axis=1, keepdims=True) / (254 if precision == "int8" else 2048)
        assert (abs(stored - vectors) <= bound * 1.0001).all()
    if precision == "int8":
        np.testing.assert_allclose(written["scale"].to_numpy(), abs(vectors).max(axis=1) / 127, rtol=1e-6)


@pytest.fixture
def prompts(tiny_model):
    path = tiny_model / "config_sentence_transformers.json"
    edit(path, prompts={"document": "the tree "})
    return path


@pytest.mark.filterwarnings("ignore::mha_text.models.batches.TruncationWarning")
def test_texts_may_have_a_prompt_and_vectors_fewer_numbers(encode, prompts, tiny_model, tmp_path):
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    report = encode(prompt_name="document", truncate_dim=5)
    expected = encoder.encode(TEXTS, prompt="the tree ", truncate_dim=5)
    assert abs(expected - encoder.encode(TEXTS, truncate_dim=5)).max() > 0.01
    close(np.stack(table(tmp_path / "out")["vector"].to_numpy()), expected)
    stored = stored_vectors(tmp_path / "out")
    assert (report.dim, stored.dim, stored.truncate_dim) == (5, 5, 5)
    whole = contents(tmp_path / "out")
    assert encode(prompt="the tree ", truncate_dim=5).reused == 23, "the same prompt, called otherwise"
    for options, message in (
        ({"truncate_dim": 5}, "options: prompt was the tree , now None"),
        ({"prompt": "a ", "truncate_dim": 5}, "options: prompt was the tree , now a "),
        ({"prompt_name": "document"}, "model: dim was 5, now 8; options: truncate_dim was 5, now None"),
    ):
        refuses(mt.CorpusError, f"was begun with something else: {message}", encode, **options)
    assert encode(prompt="the tree ", truncate_dim=5).reused == 23
    assert contents(tmp_path / "out") == whole
    refuses(ValueError, "prompt_name is 'web'; the model has the prompts query, document", encode, prompt_name="web")
    refuses(ValueError, "truncate_dim is 9; expected an int from 1 to 8", encode, truncate_dim=9)


def test_a_default_prompt_is_part_of_the_manifest(encode, prompts, tmp_path):
    encode()
    assert json.loads((tmp_path / "out/_manifest.json").read_text())["options"]["prompt"] is None
    edit(prompts, prompts={"web": "a bird "}, default_prompt_name="web")
    refuses(mt.CorpusError, "options: prompt was None, now a bird ", encode)


@pytest.mark.filterwarnings("ignore::mha_text.models.batches.TruncationWarning")
def test_prompts_that_are_not_pooled_and_dense_modules_are_part_of_the_digest(encode, tiny, tmp_path):
    layer = Dense(np.eye(8, dtype=np.float32), np.zeros(8, np.float32), "identity")
    encode(model=replace(tiny, dense=(layer,)))
    without_prompt = replace(tiny, pooling=replace(tiny.pooling, include_prompt=False))
    changed = (layer.map(lambda x: x * 2), replace(layer, activation="tanh"))
    for other in (tiny, without_prompt, *(replace(tiny, dense=(dense,)) for dense in changed)):
        refuses(mt.CorpusError, "model: sha256 was", encode, model=other)
    options = {"prompt": "the tree ", "normalize": False}
    encode(model=without_prompt, out=tmp_path / "other", **options)
    vectors = np.stack(table(tmp_path / "other")["vector"].to_numpy())
    close(vectors, without_prompt.encode(TEXTS, **options), 2e-6)
    assert np.linalg.norm(vectors, axis=1).max() > 1.5
    assert abs(vectors - tiny.encode(TEXTS, **options)).max() > 0.01


@pytest.mark.filterwarnings("ignore::mha_text.models.batches.TruncationWarning")
@pytest.mark.parametrize("options", [{"weights": "int8"}, {"dtype": "float64"}])
def test_a_model_whose_numbers_are_not_those_of_its_files_is_told_apart_from_them(encode, tiny_model, tmp_path, options):
    encoder = mt.TextEncoder.from_pretrained(tiny_model, **options)
    encode(model=encoder)
    close(np.stack(table(tmp_path / "out")["vector"].to_numpy()), encoder.encode(TEXTS))
    other_dtype = "model: dtype was float64, now float32; " if "dtype" in options else ""
    refuses(mt.CorpusError, f"was begun with something else: {other_dtype}model: sha256 was", encode)


def test_a_corpus_without_rows_has_no_parts(encode, tmp_path):
    (tmp_path / "texts.jsonl").write_text("")
    assert encode().texts == 0
    assert sorted(contents(tmp_path / "out")) == ["_SUCCESS", "_manifest.json"]
    stored = stored_vectors(tmp_path / "out")
    assert (stored.rows, stored.dim) == (0, 8)


# rows that cannot be encoded


@pytest.fixture
def invalid(tmp_path):
    lines = (tmp_path / "texts.jsonl").read_bytes().splitlines(keepends=True)
    lines[7], lines[12], lines[13] = b'{"text": null, "key": 107}\n', b'{"text": "\xff"}\n', b'{"text": "a", "key": "b"}\n'
    (tmp_path / "texts.jsonl").write_bytes(b"".join(lines))
    return tmp_path


def test_a_row_without_a_text_stops_the_run_with_file_and_row(encode, invalid):
    refuses(mt.BadText, f"{invalid / 'texts.jsonl'}, row 8: text is null", encode)
    assert sorted(contents(invalid / "out")) == ["_manifest.json", "part-00000.parquet"]


def test_or_is_listed_and_the_other_rows_keep_their_ids(encode, invalid):
    report = encode(skip_invalid=True, id="key")
    assert (report.texts, report.rejected) == (20, 3)
    assert table(invalid / "out")["id"].to_pylist() == [at for at in range(100, 123) if at not in (107, 112, 113)]
    listed = [
        {"file": "texts.jsonl", "row": 8, "reason": "text is null"},
        {"file": "texts.jsonl", "row": 13, "reason": "not valid UTF-8 (byte 11 of the row: invalid start byte)"},
        {"file": "texts.jsonl", "row": 14, "reason": "key is 'b'; ids of this corpus are int64"},
    ]
    assert table(invalid / "out/_rejected/rejected.parquet").to_pylist() == listed
    assert encode(skip_invalid=True, id="key").reused == 20, "the list is written again from what the parts say"
    assert table(invalid / "out/_rejected/rejected.parquet").to_pylist() == listed
    encode(skip_invalid=True, out=invalid / "rows")
    assert table(invalid / "rows")["id"].to_pylist() == [at for at in range(23) if at not in (7, 12)]


def test_ids_of_two_types_or_that_int64_cannot_hold_are_refused(encode, tmp_path):
    both = [tmp_path / "texts.jsonl", write(tmp_path / "more.jsonl", TEXTS, [str(at) for at in range(23)])]
    refuses(mt.CorpusError, "texts.jsonl are int64, and those of", encode, id="key", sources=both)
    write(tmp_path / "texts.jsonl", TEXTS, [*range(22), 2**63])
    refuses(mt.BadText, "row 23: key is 9223372036854775808, which int64 cannot hold", encode, id="key")


# runs that go on


def test_a_run_that_was_stopped_encodes_only_what_is_missing(encode, tmp_path):
    encode()
    whole = contents(tmp_path / "out")
    for name in ("part-00001.parquet", "part-00004.parquet", "_SUCCESS"):
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "part-00002.parquet").write_bytes(whole["part-00002.parquet"][:-7])  # as after a loss of power
    (tmp_path / "out" / ".part-00001.parquet.abcdefgh.part").write_bytes(b"left over")
    before = (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns
    report = encode()
    assert (report.texts, report.reused) == (23, 10)
    assert contents(tmp_path / "out") == whole
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == before


class ModelIsRead(Exception):
    """A model is read."""


def read(*_, **__):
    raise ModelIsRead


def test_a_run_with_nothing_left_to_do_does_not_read_the_model(encode, tiny_model, tmp_path, monkeypatch):
    edit(tiny_model / "config_sentence_transformers.json", prompts={"document": "a "})
    options = {"prompt_name": "document", "truncate_dim": 5}
    encode(**options)
    written = contents(tmp_path / "out")
    moved = tiny_model.rename(tmp_path / "moved")
    monkeypatch.setattr(mt.TextEncoder, "from_pretrained", read)
    monkeypatch.setattr(job, "_encoders", {})
    report = encode(model=moved, **options)
    assert (report.texts, report.reused, report.dim, report.max_seq_length) == (23, 23, 5, 8)
    assert contents(tmp_path / "out") == written
    with pytest.raises(ModelIsRead):  # vectors may be of another length, which the model knows
        encode(model=moved, prompt_name="document")
    (tmp_path / "out/part-00001.parquet").unlink()
    with pytest.raises(ModelIsRead):
        encode(model=moved, **options)


def test_other_files_of_a_model_and_another_backend_are_noticed_all_the_same(encode, tiny_model, tmp_path):
    encode()
    edit(tiny_model / "sentence_bert_config.json", max_seq_length=7)
    refuses(mt.CorpusError, "model: sha256 was", encode)
    edit(tiny_model / "sentence_bert_config.json", max_seq_length=8)
    assert encode().reused == 23
    with mha.use_backend("array_api_strict"):
        refuses(mt.CorpusError, "model: backend was numpy, now array_api_strict", encode)


def test_the_mark_of_a_whole_folder_is_no_proof_for_an_encoder_that_may_differ_from_its_files(encode, tiny, tmp_path):
    """Its files may be others since it was read, and it others than they."""
    edit(tiny.tokenizer.path.parent / "config.json", layer_norm_eps=1e-6)
    for out, model in (("stale", tiny), ("changed", replace(tiny))):
        encode(out=tmp_path / out, model=model)
        assert (tmp_path / out / "_SUCCESS").read_bytes() == b""
    encode()
    assert len((tmp_path / "out/_SUCCESS").read_bytes()) == 64


def test_another_corpus_model_or_option_is_refused_with_what_differs(encode, tiny, tmp_path):
    encode()
    whole = contents(tmp_path / "out")
    write(tmp_path / "other" / "texts.jsonl", [*TEXTS[:-1], "dawn"], range(100, 123))
    for message, options in (
        ("options: precision was float32, now int8", {"precision": "int8"}),
        ("options: part_rows was 5, now 6", {"part_rows": 6}),
        ("options: id was None, now key", {"id": "key"}),
        (
            "model: normalize was True, now False; model: sha256",
            {"model": replace(tiny, pooling=replace(tiny.pooling, normalize=False))},
        ),
        ("sources: other contents in texts.jsonl. Give", {"sources": tmp_path / "other" / "texts.jsonl"}),
        ("sources: 1 more file, texts.jsonl; rows", {"sources": [tmp_path / "texts.jsonl"] * 2}),
    ):
        refuses(mt.CorpusError, f"was begun with something else: {message}", encode, **options)
        assert contents(tmp_path / "out") == whole


def test_the_corpus_and_the_folder_may_move(encode, tmp_path):
    encode()
    whole = contents(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "texts.jsonl").rename(tmp_path / "elsewhere/texts.jsonl")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert encode(sources=tmp_path / "elsewhere/texts.jsonl", out=tmp_path / "moved").reused == 23
    assert contents(tmp_path / "moved") == whole
    assert str(tmp_path).encode() not in b"".join(whole.values()), "paths in the folder are relative"


def test_a_folder_with_other_files_is_left_alone(encode, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    refuses(FileExistsError, "out has other files, and no _manifest.json; expected a new or empty folder", encode)
    assert contents(tmp_path / "out") == {"precious": b"x"}


def test_a_full_disk_leaves_whole_parts_and_the_next_run_goes_on(encode, tmp_path):
    encode(out=tmp_path / "quiet")
    quiet = contents(tmp_path / "quiet")
    smallest = min(len(data) for name, data in quiet.items() if name.startswith("part"))
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (smallest, before[1]))  # the last part fits, the others do not
    try:
        refuses(OSError, "part-00000.parquet cannot be written: File too large", encode)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert sorted(contents(tmp_path / "out")) == ["_manifest.json"]
    encode()
    assert contents(tmp_path / "out") == quiet


# arguments


def test_wrong_arguments_are_refused(encode, tmp_path):
    for error, message, options in (
        (ValueError, "precision is 'int4'; expected one of float32, float16, int8, binary", {"precision": "int4"}),
        (ValueError, "part_rows is 0; expected an int of at least 1, or None", {"part_rows": 0}),
        (TypeError, "model is int; expected a path, a repository, a TextEncoder or a function", {"model": 7}),
        (TypeError, "model returned int; expected a TextEncoder", {"model": lambda: 7}),
        (mt.ModelNotFound, "no directory", {"model": tmp_path / "nothing"}),
    ):
        refuses(error, message, encode, **options)
    assert not (tmp_path / "out").exists()


# reading what was written


def test_an_array_is_read_back_by_blocks(tmp_path):
    with npy_writer(tmp_path / "x.npy") as append:
        append(np.zeros((0, 3), np.float32))
        append(np.arange(15000, dtype=np.float32).reshape(5000, 3))
    stored = stored_vectors(tmp_path / "x.npy")
    blocks = list(stored.blocks())
    assert (stored.rows, stored.dim, [len(ids) for ids, _ in blocks]) == (5000, 3, [4096, 904])
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), np.load(tmp_path / "x.npy"))


def test_what_cannot_be_read_back_says_why(tmp_path, encode):
    encode()
    (tmp_path / "out/_SUCCESS").unlink()
    np.save(tmp_path / "ids.npy", np.arange(3))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/_manifest.json").write_text('{"format": 2}')
    for name, message in (
        ("nothing", "does not exist; expected a .npy file, or a folder that mha encode wrote"),
        ("out", "is not whole: run mha encode again, which goes on where it stopped"),
        ("empty", "has no _manifest.json: it was not written by mha encode"),
        ("other", "_manifest.json is of another format; expected format 1"),
        ("ids.npy", "holds int64 of shape (3,); expected floating numbers of shape (n, d)"),
        ("objects.npy", "is not a .npy file of numbers"),
    ):
        refuses((mt.CorpusError, FileNotFoundError), message, stored_vectors, path=tmp_path / name)
    encode()
    (tmp_path / "out/part-00003.parquet").unlink()
    refuses(mt.CorpusError, "has 4 parts; its manifest says 5", stored_vectors, path=tmp_path / "out")
