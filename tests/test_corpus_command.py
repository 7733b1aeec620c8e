"""mha encode with a folder of parts: what the command writes, sums up and refuses."""

import json

import numpy as np
import pytest

import needs
from conftest import mha
from test_corpus import TEXTS
from test_corpus_files import write
from test_encode import fails, ok

pytestmark = needs.installed("pyarrow")


@pytest.fixture
def tiny(tiny_model):
    return mha.TextEncoder.from_pretrained(tiny_model, backend="numpy")


def test_the_command_writes_a_folder_and_sums_up(tiny_model, tmp_path):
    write(tmp_path / "x.jsonl", [*TEXTS, "a " * 20])
    given = ("encode", "--model", tiny_model, tmp_path / "*.jsonl", "--field", "text", "-o", tmp_path / "out")
    first, second = (ok(*given).splitlines() for _ in range(2))
    assert first[0] == second[0] == f"wrote {tmp_path / 'out'}: 1 file of 24 vectors of 8 numbers"
    assert first[1].startswith("24 texts in ")
    assert first[2] == second[2] == "1 text is longer than 8 tokens, and was cut there"
    assert second[1] == "24 of them had been written by an earlier run"
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert manifest["sources"][0]["path"] == "x.jsonl"


def test_the_command_lists_rows_without_texts(tiny_model, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    given = ("encode", "--model", tiny_model, tmp_path / "x.txt", "-o", tmp_path / "out")
    assert f"{tmp_path / 'x.txt'}, line 2: not valid UTF-8" in fails(1, *given)
    found = ok(*given[:-1], tmp_path / "other", "--skip-invalid").splitlines()
    assert found[-1] == f"1 row has no text that can be encoded: see {tmp_path / 'other/_rejected/rejected.parquet'}"


def test_one_array_and_json_lines_come_from_the_same_files(tiny_model, tiny, tmp_path):
    write(tmp_path / "x.parquet", TEXTS)
    given = ("encode", "--model", tiny_model, tmp_path / "x.parquet", "--column", "text")
    ok(*given, "-o", tmp_path / "x.npy")
    vectors = np.array([json.loads(line) for line in ok(*given).splitlines()], np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), tiny.encode(TEXTS))
    np.testing.assert_allclose(vectors, tiny.encode(TEXTS), rtol=0, atol=1e-6)


def test_the_command_refuses_what_does_not_go_together(tiny_model, tmp_path):
    write(tmp_path / "x.csv", TEXTS)
    given = ("encode", "--model", tiny_model, tmp_path / "x.csv", "--column", "text")
    assert "is for a folder of vectors; add --output vectors/" in fails(2, *given, "--id", "key")
    assert "is for a folder of vectors; add --output vectors/" in fails(2, *given, "--skip-invalid", "-o", "x.npy")
    assert "'int4' is none of float32, float16, int8, binary" in fails(2, *given, "--precision", "int4", "-o", "out")
    assert "a scheduler has workers; leave out one of the two" in fails(
        2, *given, "-w", "2", "--scheduler", "tcp://x:1", "-o", "y"
    )
    for more in (["--workers", "2"], ["-o", "out", "--text", "a"], ["-o", "out", "-k", "2"], ["-o", "out", "-"]):
        assert "leave out --text, - and --similar" in fails(2, *given, *more)
    assert "x.csv has no column 'words': its columns are key, text" in fails(1, *given[:-1], "words", "-o", tmp_path / "out")
    assert "no file matches" in fails(2, "encode", "--model", tiny_model, tmp_path / "*.tsv")
