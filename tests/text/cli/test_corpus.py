"""mha encode with a folder of parts: what the command writes, sums up and refuses."""

import json

import needs
import numpy as np
from command import fails, ok
from written_texts import TEXTS, write

pytestmark = needs.installed("pyarrow")


def test_the_command_writes_a_folder_and_sums_up(tiny_model, tmp_path):
    write(tmp_path / "x.jsonl", [*TEXTS, "a " * 20])
    command = ("encode", "--model", tiny_model, tmp_path / "*.jsonl", "--field", "text", "-o", tmp_path / "out")
    first, second = (ok(*command).splitlines() for _ in range(2))
    assert first[0] == second[0] == f"wrote {tmp_path / 'out'}: 1 file of 24 vectors of 8 numbers"
    assert first[1].startswith("24 texts in ")
    assert first[2] == second[2] == "1 text is longer than 8 tokens, and was cut there"
    assert second[1] == "24 of them had been written by an earlier run"
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert manifest["sources"][0]["path"] == "x.jsonl"


def test_the_command_lists_rows_without_texts(tiny_model, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    command = ("encode", "--model", tiny_model, tmp_path / "x.txt", "-o", tmp_path / "out")
    assert f"{tmp_path / 'x.txt'}, line 2: not valid UTF-8" in fails(1, *command)
    printed = ok(*command[:-1], tmp_path / "other", "--skip-invalid").splitlines()
    assert printed[-1] == f"1 row has no text that can be encoded: see {tmp_path / 'other/_rejected/rejected.parquet'}"


def test_one_array_and_json_lines_come_from_the_same_files(tiny_model, tiny, tmp_path):
    write(tmp_path / "x.parquet", TEXTS)
    command = ("encode", "--model", tiny_model, tmp_path / "x.parquet", "--column", "text")
    ok(*command, "-o", tmp_path / "x.npy")
    vectors = np.array([json.loads(line) for line in ok(*command).splitlines()], np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), tiny.encode(TEXTS))
    np.testing.assert_allclose(vectors, tiny.encode(TEXTS), rtol=0, atol=1e-6)


def test_the_command_refuses_what_does_not_go_together(tiny_model, tmp_path):
    write(tmp_path / "x.csv", TEXTS)
    command = ("encode", "--model", tiny_model, tmp_path / "x.csv", "--column", "text")
    for message, arguments in (
        ("is for a folder of vectors; add --output vectors/", ("--id", "key")),
        ("is for a folder of vectors; add --output vectors/", ("--skip-invalid", "-o", "x.npy")),
        ("'int4' is none of float32, float16, int8, binary", ("--precision", "int4", "-o", "out")),
        ("a scheduler has workers; leave out one of the two", ("-w", "2", "--scheduler", "tcp://x:1", "-o", "y")),
        ("leave out --text, - and --similar", ("--workers", "2")),
        *(("leave out --text, - and --similar", ("-o", "out", *more)) for more in (("--text", "a"), ("-k", "2"), ("-",))),
    ):
        assert message in fails(2, *command, *arguments)
    assert "x.csv has no column 'words': its columns are key, text" in fails(1, *command[:-1], "words", "-o", tmp_path / "out")
    assert "no file matches" in fails(2, "encode", "--model", tiny_model, tmp_path / "*.tsv")
