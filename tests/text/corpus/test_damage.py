"""Corpora that change or are damaged: during a run, between runs, and before they are read. Nothing wrong goes on."""

import json
import os
import re
from dataclasses import replace

import needs
import numpy as np
import pytest
from corpus_kills import contents
from tiny_models import edit
from written_texts import TEXTS, write

import mha_text as mt
from mha_text.corpus import encode as encoding
from mha_text.corpus import manifest as manifests
from mha_text.corpus import parts
from mha_text.corpus.stored import stored_vectors

pytestmark = needs.installed("pyarrow")


@pytest.fixture
def encode(tiny_model, tmp_path):
    """The function that encodes two files of texts to out in parts of 5 rows."""
    write(tmp_path / "a.jsonl", TEXTS, range(23))
    write(tmp_path / "b.jsonl", TEXTS[:10], range(23, 33))

    def run(**options):
        settings = {"column": "text", "id": "key", "part_rows": 5, "progress": False, "sources": tmp_path / "[ab].jsonl"}
        settings |= {"out": tmp_path / "out", "model": tiny_model}
        return mt.encode_corpus(None, **settings | options)

    return run


def refuses(message, function, **options):
    with pytest.raises(mt.CorpusError, match=re.escape(message)) as error:
        function(**options)
    assert str(error.value).isprintable()


def read(folder):
    return [id for ids, _ in stored_vectors(folder).blocks() for id in ids]


# during a run


def after(parts, monkeypatch, do):
    """Call ``do`` when this many parts are written."""
    encode_part, written = encoding.encode_part, []

    def and_then(job, part):
        done = encode_part(job, part)
        written.append(part)
        if len(written) == parts:
            do()
        return done

    monkeypatch.setattr(encoding, "encode_part", and_then)


def test_a_file_that_is_replaced_during_a_run_is_noticed_and_what_was_made_of_it_is_removed(encode, tmp_path, monkeypatch):
    before = (tmp_path / "b.jsonl").read_bytes()
    after(6, monkeypatch, lambda: write(tmp_path / "b.jsonl", TEXTS[10:20], range(23, 33)))
    refuses(f"{tmp_path / 'b.jsonl'} was changed while it was encoded, so {tmp_path / 'out'} is not whole", encode)
    assert sorted(contents(tmp_path / "out")) == ["_manifest.json", *(f"part-0000{at}.parquet" for at in range(5))]
    refuses("out was begun with something else: sources: other contents in b.jsonl", encode)
    (tmp_path / "b.jsonl").write_bytes(before)
    monkeypatch.undo()
    assert encode().reused == 23
    assert read(tmp_path / "out") == list(range(33))


@pytest.mark.parametrize("how", ["cut", "longer", "gone"])
def test_a_file_that_is_cut_during_a_run_is_noticed(encode, tmp_path, monkeypatch, how):
    lines = (tmp_path / "b.jsonl").read_bytes().splitlines(keepends=True)
    do = (
        (tmp_path / "b.jsonl").unlink
        if how == "gone"
        else lambda: (tmp_path / "b.jsonl").write_bytes(b"".join(lines[:7] if how == "cut" else lines * 2))
    )
    after(7 if how == "gone" else 5, monkeypatch, do)
    refuses(f"{tmp_path / 'b.jsonl'} was changed while it was encoded", encode)
    assert not (tmp_path / "out/_SUCCESS").exists()


def test_of_two_runs_into_one_folder_one_wins_and_the_other_says_so(encode, tmp_path, monkeypatch):
    after(2, monkeypatch, lambda: refuses(f"another run writes into {tmp_path / 'out'}", encode))
    assert encode().texts == 33
    assert encode().reused == 33


def test_a_run_that_was_killed_while_it_wrote_the_manifest_goes_on(encode, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "._manifest.json.abcdefgh.part").write_bytes(b'{"format"')
    assert encode().texts == 33


def test_vectors_of_nan_stop_a_run_with_file_and_row(encode, tiny, tmp_path):
    model = replace(tiny, model=tiny.model.map(lambda x: x * np.float32(np.nan)))
    with pytest.raises(mt.BadText, match=r"a\.jsonl, row 1: its vector has NaN or infinity"):
        encode(model=model, skip_invalid=True)
    assert sorted(contents(tmp_path / "out")) == ["_manifest.json"]


HOSTILE = {
    '{"text": "a", "key": "\\ud800"}': "key cannot be written as UTF-8: surrogates not allowed at character 1",
    '{"\\ud800": 1, "key": 1}': "has no field 'text': its fields are \\ud800, key",
    json.dumps({"x" * 5000: 1}): f"has no field 'text': its fields are {'x' * 250}",
    json.dumps({"text": "a", "key": "k" * 5000}): f"key is '{'k' * 250}",
    '{"text": "a", "key": 1' + "0" * 400 + "}": f"key is 1{'0' * 250}",
    '{"text": "a", "key": 1'
    + "0" * 5000
    + "}": "not valid JSON: Exceeds the limit (4300 digits) for integer string conversion",
    "[" * 100000: "not valid JSON: maximum recursion depth exceeded",
}


def test_hostile_ids_and_names_of_fields_are_listed_with_file_and_row(encode, tmp_path):
    name = os.fsdecode(b"b\xff.jsonl")
    (tmp_path / name).write_bytes("\n".join(['{"text": "a", "key": 0}', *HOSTILE]).encode())
    report = encode(sources=[tmp_path / "a.jsonl", tmp_path / name], skip_invalid=True)
    assert (report.texts, report.rejected) == (24, len(HOSTILE))
    import pyarrow.parquet as pq

    listed = pq.read_table(tmp_path / "out/_rejected/rejected.parquet").to_pylist()
    assert [(row["file"], row["row"]) for row in listed] == [("b\\udcff.jsonl", at) for at in range(2, len(HOSTILE) + 2)]
    for row, reason in zip(listed, HOSTILE.values(), strict=True):
        assert row["reason"].startswith(reason), row["reason"]
    assert read(tmp_path / "out") == [*range(23), 0]
    assert encode(sources=[tmp_path / "a.jsonl", tmp_path / name], skip_invalid=True).reused == 24


# files of texts


def test_files_that_are_damaged_are_named(encode, tmp_path):
    write(tmp_path / "x.parquet", ["a"] * 5000)
    whole = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "old.csv").write_bytes(b"key,text\r1,a\r2,b\r")
    (tmp_path / "footer.parquet").write_bytes(whole[:-40] + b"\xff" * 32 + whole[-8:])
    (tmp_path / "pages.parquet").write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])
    (tmp_path / "empty.parquet").write_bytes(b"")
    refuses(
        f"{tmp_path / 'old.csv'}: the header is not valid CSV, whose lines end with \\n or \\r\\n",
        encode,
        sources=tmp_path / "old.csv",
    )
    for name in ("footer", "pages", "empty"):
        refuses(f"{tmp_path / name}.parquet is not a Parquet file, or is damaged", encode, sources=tmp_path / f"{name}.parquet")


def test_a_pipe_or_a_device_is_no_file_of_a_corpus(encode, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        refuses(f"{path} is a pipe or a device", encode, sources=path, column=None, id=None)
        refuses(f"{path} is a pipe or a device", stored_vectors, path=path)


# what was written

MANIFESTS = {
    "options is missing": lambda m: m.pop("options"),
    "options.precision is missing": lambda m: m["options"].pop("precision"),
    "options.precision is not one of": lambda m: m["options"].update(precision="float64"),
    "options.id_type is not one of": lambda m: m["options"].update(id_type="double"),
    "options.truncate_dim is 'x'": lambda m: m["options"].update(truncate_dim="x"),
    "dim is -1": lambda m: m.update(dim=-1),
    "parts is '\\x1b[31m'": lambda m: m.update(parts="\x1b[31m"),
    "rows is True": lambda m: m.update(rows=True),
    "sources is {}": lambda m: m.update(sources={}),
    "part-00000.parquet was written for another corpus, model or options": lambda m: m.update(rows=34),
}


@pytest.mark.parametrize("message", MANIFESTS)
def test_a_manifest_that_was_tampered_with(encode, tmp_path, message):
    encode()
    path = tmp_path / "out/_manifest.json"
    changed = json.loads(path.read_text())
    MANIFESTS[message](changed)
    path.write_bytes(manifests.as_bytes(changed))
    refuses(message, read, folder=tmp_path / "out")
    refuses("rows was 34, now 33" if "another corpus" in message else message, encode)


def test_a_manifest_that_is_no_json(encode, tmp_path):
    encode()
    for text in ("", "[" * 100000, "[]", "3"):
        (tmp_path / "out/_manifest.json").write_text(text)
        refuses("_manifest.json is ", read, folder=tmp_path / "out")


def rewritten(path, change=lambda table: table, **metadata):
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    fields = json.loads(table.schema.metadata[b"mha_core"]) | metadata
    pq.write_table(change(table).replace_schema_metadata({b"mha_core": json.dumps(fields)}), path)


def another_number(table):
    import pyarrow as pa

    values = table["vector"].combine_chunks().flatten().to_numpy().copy()
    values[3] += 1e-6
    return table.set_column(1, table.schema.field("vector"), pa.FixedSizeListArray.from_arrays(pa.array(values), 8))


PARTS = {
    "its rows are not those that were written": lambda path: rewritten(path, another_number),
    "is damaged: its rows": lambda path: rewritten(path, lambda table: table.slice(1)),
    "its rows are not": lambda path: rewritten(path, lambda table: table.take([1, 0, 2, 3, 4])),
    "not those that were written": lambda path: rewritten(path, texts=6),
    "those that were written": lambda path: rewritten(path, tokens=7),
    "or is damaged: its metadata are wrong": lambda path: rewritten(path, rejected=[["x"]]),
    "its metadata are wrong": lambda path: rewritten(path, texts="many"),
    "was written for another corpus, model or options": lambda path: rewritten(path, job="0"),
    "has other columns than mha encode writes": lambda path: rewritten(path, lambda table: table.select(["vector"])),
    "is not a Parquet file, or is damaged": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "not a Parquet file": lambda path: path.write_bytes(path.read_bytes()[:4] + b"\0" * 300 + path.read_bytes()[304:]),
}


@pytest.mark.parametrize("message", PARTS)
def test_a_part_that_is_damaged_is_refused_by_search_and_encoded_again(encode, tmp_path, message):
    encode()
    whole = contents(tmp_path / "out")
    PARTS[message](tmp_path / "out/part-00002.parquet")
    with pytest.raises(mt.CorpusError, match=rf"part-00002\.parquet.*{message}"):
        mt.semantic_search(np.ones((1, 8), np.float32), tmp_path / "out")
    assert encode().reused == 28
    assert contents(tmp_path / "out") == whole


def test_parts_that_were_exchanged_are_noticed(encode, tmp_path):
    encode()
    whole, paths = contents(tmp_path / "out"), [tmp_path / f"out/part-0000{at}.parquet" for at in (1, 2)]
    for path, other in zip(paths, paths[::-1], strict=True):
        path.write_bytes(whole[other.name])
    refuses("part-00001.parquet is damaged: its rows are not those", read, folder=tmp_path / "out")
    assert encode().reused == 23
    assert contents(tmp_path / "out") == whole


def test_ids_that_are_no_text_any_more(encode, tmp_path):
    write(tmp_path / "a.jsonl", TEXTS, [f"id {at}" for at in range(23)])
    encode(sources=tmp_path / "a.jsonl")
    path = tmp_path / "out/part-00001.parquet"
    path.write_bytes(path.read_bytes().replace(b"id 7", b"id \xb7"))
    refuses(f"{path} is not a Parquet file, or is damaged: 'utf-8' codec can't decode", read, folder=tmp_path / "out")
    assert encode(sources=tmp_path / "a.jsonl").reused == 18


def test_the_dim_of_a_manifest_that_was_tampered_with(encode, tmp_path):
    encode()
    edit(tmp_path / "out/_manifest.json", dim=9)
    refuses("was written for another", mt.semantic_search, queries=np.ones((1, 8), np.float32), corpus=tmp_path / "out")


def test_long_values_of_a_manifest_are_shortened(encode, tmp_path):
    encode()
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    manifest["model"]["\x1b"] = "A" * 5000
    (tmp_path / "out/_manifest.json").write_bytes(manifests.as_bytes(manifest))
    refuses(f"model: \\x1b was {'A' * 250}", encode)
    with pytest.raises(mt.CorpusError) as error:
        encode()
    assert len(str(error.value)) < 1000


def test_the_parts_have_as_many_rows_as_the_manifest_says(encode, tmp_path):
    encode()
    layout = parts.Layout("int64", "float32", 8, manifests.digest(manifests.read(tmp_path / "out")))
    report, (ids, vectors) = parts.read_part(tmp_path / "out/part-00002.parquet", layout)
    one_more = replace(report, rejected=(("a.jsonl", 3, "because"),))
    parts.write_part(tmp_path / "out/part-00002.parquet", ids, vectors, one_more, layout)
    refuses(f"{tmp_path / 'out'} has parts of 34 rows; its manifest says 33", read, folder=tmp_path / "out")


BEFORE_SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': "
HEADERS = ["{", "{'descr': '<f4'}", "[" * 300, "\0" * 9, "é" * 9]
HEADERS += [f"{BEFORE_SHAPE}{shape}}}" for shape in ("(9, 9)", "(2**40, 2**40)", "(99999999999999999999, 1)", "'x'")]


@pytest.mark.parametrize("header", HEADERS)
def test_the_header_of_an_array_that_was_tampered_with(tmp_path, header):
    text = header.encode().ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 16)
    refuses(f"{tmp_path / 'x.npy'} is not a .npy file of numbers", stored_vectors, path=tmp_path / "x.npy")


def test_a_model_that_was_edited_is_another(encode, tiny_model):
    encode()
    edit(tiny_model / "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    refuses("was begun with something else: model: sha256 was", encode)
