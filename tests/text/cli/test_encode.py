"""``mha encode``: its output, its exit codes, and the files that remain after a failure."""

import json
import os
import sys

import needs
import numpy as np
import processes
import pytest
import tqdm
from command import COMMAND, fails, ok, run
from tiny_models import close, edit
from written_texts import TEXTS, write

import mha_text as mt


def rows(stdout):
    return np.array([json.loads(line) for line in stdout.splitlines()], dtype=np.float32)


def text_options(*texts):
    """The arguments that name these texts."""
    return [part for text in texts for part in ("-t", text)]


def nearest(vectors, at):
    """The other places, nearest first, with their cosines."""
    return sorted(((vectors[at] @ x, other) for other, x in enumerate(vectors) if other != at), reverse=True)


@pytest.fixture
def encode(tiny_model):
    """The arguments of ``mha encode`` with the tiny model."""
    return ("encode", "--model", tiny_model)


@pytest.fixture
def expected(tiny_model):
    """The function from texts to the vectors that TextEncoder returns."""
    return mt.TextEncoder.from_pretrained(tiny_model).encode


# printed output


def test_a_text_becomes_a_line_of_json(encode, expected):
    out = ok(*encode, "--text", "a bird", "--output", "-")
    assert (out.count("\n"), len(json.loads(out))) == (1, 8)
    np.testing.assert_array_equal(rows(out), expected(["a bird"]))


def numbers(vector):
    return "".join(f"{number:9.4f}" for number in vector[:5]) + "  ..."


ALL_NUMBERS = "all numbers: --output vectors.npy, or --output - for JSON"


def test_without_an_output_a_summary_is_printed_that_says_how_to_get_the_numbers(encode, expected, tmp_path):
    (vector,) = expected(["a bird"])
    assert ok(*encode, "-t", "a bird").splitlines() == ["1 vector of 8 numbers, length 1.000", numbers(vector), ALL_NUMBERS]
    texts = ["a bird", "the tree", "sings", "dawn", "at dawn"]
    vectors, cut = expected(texts), expected(texts, truncate_dim=3)
    assert ok(*encode, *text_options(*texts)).splitlines() == [
        *("5 vectors of 8 numbers, length 1.000", *map(numbers, vectors[:3]), "  ...", ALL_NUMBERS)
    ]
    shortest, *_, longest = sorted(np.linalg.norm(cut, axis=1))
    first, second, *_ = ok(*encode, *text_options(*texts), "--truncate-dim", "3").splitlines()
    assert first == f"5 vectors of 3 numbers, lengths {shortest:.3f} to {longest:.3f}"
    assert second == numbers(cut[0]).removesuffix("  ...")
    (tmp_path / "texts").write_text("a bird\ndawn\n" * 2500)  # more than the 4096 of a window
    first, *shown = ok(*encode, tmp_path / "texts").splitlines()
    assert first == "5000 vectors of 8 numbers, length 1.000" and len(shown) == 5
    (tmp_path / "empty").touch()
    assert ok(*encode, tmp_path / "empty") == "0 vectors of 8 numbers\n"


def test_files_standard_input_and_texts_in_order(encode, expected, tmp_path):
    (tmp_path / "one").write_text("a bird\nthe tree\n")
    (tmp_path / "two").write_text("dawn")
    texts = ["a bird", "the tree", "dawn", "sings", "bird", "at"]
    out = ok(*encode, "--text", "bird", tmp_path / "one", tmp_path / "two", "-", "-t", "at", "-o", "-", stdin="sings\n")
    close(rows(out), expected(texts))


@pytest.mark.parametrize(
    ("arguments", "stdin", "texts", "note"),
    [
        (("-",), "a bird\n\ndawn\n", ["a bird", "", "dawn"], "1 of 3 texts is empty, and has a vector all the same\n"),
        (("-",), "\n \na\n", ["", " ", "a"], "2 of 3 texts are empty, and have vectors all the same\n"),
        (("-t", ""), None, [""], "1 of 1 text is empty, and has a vector all the same\n"),
        (("-t", "a"), None, ["a"], ""),
    ],
)
def test_empty_texts_have_vectors_and_standard_error_counts_them(encode, expected, arguments, stdin, texts, note):
    done = run(*encode, *arguments, "-o", "-", stdin=stdin)
    assert (done.exit_code, done.stderr) == (0, note)
    close(rows(done.stdout), expected(texts))


def test_a_pipe_can_be_read_as_a_file(encode, expected):
    read, write = os.pipe()
    os.write(write, b"a bird\ndawn\n")
    os.close(write)
    try:  # the path that a shell passes for <(command)
        np.testing.assert_array_equal(rows(ok(*encode, f"/dev/fd/{read}", "-o", "-")), expected(["a bird", "dawn"]))
    finally:
        os.close(read)


def test_environment_variables_set_the_model_and_the_backend(tiny_model, monkeypatch):
    asked = ok("encode", "--model", tiny_model, "-t", "a bird")
    monkeypatch.setenv("MHA_MODEL", str(tiny_model))
    assert ok("encode", "-t", "a bird", "--backend", "numpy") == asked
    monkeypatch.setenv("MHA_BACKEND", "nunpy")
    assert "no backend is named 'nunpy'" in fails(1, "encode", "-t", "a bird")


# similar


def test_similar_prints_each_text_and_its_nearest_texts_or_json_for_programs(encode, expected):
    texts = ["a bird sings", "the bird\u2028sings", "dawn at the tree"]
    vectors = expected(texts)
    lines = ok(*encode, "--similar", "2", *text_options(*texts)).split("\n")
    records = [json.loads(line) for line in ok(*encode, "--similar", "2", "--json", *text_options(*texts)).split("\n")[:-1]]
    for at, (text, record) in enumerate(zip(texts, records, strict=True)):
        hits = nearest(vectors, at)
        assert lines[3 * at : 3 * at + 3] == [text, *(f"  {cosine:.3f}  {texts[other]}" for cosine, other in hits)]
        assert record["text"] == text
        assert [(hit["id"], hit["text"]) for hit in record["hits"]] == [(other, texts[other]) for _, other in hits]
        assert [hit["score"] for hit in record["hits"]] == pytest.approx([cosine for cosine, _ in hits], abs=2e-6)
    assert lines[9:] == [""]


def test_similar_prints_at_most_all_other_texts(encode):
    assert ok(*encode, "-k", "99", "-t", "a", "-t", "a").splitlines() == ["a", "  1.000  a", "a", "  1.000  a"]


def test_one_text_has_no_nearest_text_and_standard_error_says_why(encode):
    for options, printed in (((), "a\n"), (("--json",), '{"text": "a", "hits": []}\n')):
        done = run(*encode, "-k", "3", "-t", "a", *options)
        assert (done.exit_code, done.stdout) == (0, printed)
        assert done.stderr == "there is one text, and no other to compare it with: give more FILEs or --text\n"


def test_prompts_and_cut_vectors(encode, tiny_model):
    edit(tiny_model / "config_sentence_transformers.json", prompts={"query": "a bird "})
    encoder = mt.TextEncoder.from_pretrained(tiny_model)
    for options, same in (
        (("--prompt", "the tree "), {"prompt": "the tree "}),
        (("--prompt-name", "query", "--truncate-dim", "3"), {"prompt": "a bird ", "truncate_dim": 3}),
    ):
        np.testing.assert_allclose(
            rows(ok(*encode, "-t", "dawn", "-o", "-", *options)), encoder.encode(["dawn"], **same), atol=1e-6
        )
    assert "truncate_dim is 9; expected an int from 1 to 8" in fails(1, *encode, "-t", "a", "--truncate-dim", "9")


def test_texts_are_printed_verbatim(encode):
    texts = ["[red]a", "[/x] :b:", " a", "w" * 500]
    assert ok(*encode, "-k", "1", *text_options(*texts)).splitlines()[::2] == texts


# files


def test_output_is_an_npy_file(encode, expected, tmp_path):
    written = ok(*encode, "-t", "a bird", "-t", "dawn", "--output", tmp_path / "x.npy")
    assert written == f"wrote {tmp_path / 'x.npy'}: 2 vectors of 8 numbers\n"
    vectors = np.load(tmp_path / "x.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, expected(["a bird", "dawn"]))
    ok(*encode, "-t", "a", "-o", tmp_path / "x.npy")  # which is replaced
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected(["a"]))
    assert [path.name for path in tmp_path.glob("*x.npy*")] == ["x.npy"]


def test_output_of_several_windows_is_complete(encode, expected, tmp_path):
    (tmp_path / "texts").write_text("a bird\ndawn\n" * 2500)  # more than the 4096 of a window
    ok(*encode, tmp_path / "texts", "--output", tmp_path / "x.npy")
    vectors = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert vectors.shape == (5000, 8)
    close(vectors[-2:], expected(["a bird", "dawn"]))


def test_output_and_similar_together_do_both(encode, expected, tmp_path):
    out = ok(*encode, "-t", "a", "-t", "a", "-k", "1", "-o", tmp_path / "x.npy")
    assert out.splitlines() == [*["a", "  1.000  a"] * 2, f"wrote {tmp_path / 'x.npy'}: 2 vectors of 8 numbers"]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected(["a", "a"]))


@pytest.mark.parametrize(("source", "total"), [("file", 4), ("standard input", None)])
def test_the_bar_knows_the_number_of_texts_if_all_are_in_files(encode, tmp_path, monkeypatch, source, total):
    """So it can show the time left; a pipe would have to be read twice."""
    totals, bar = [], tqdm.tqdm
    monkeypatch.setattr(tqdm, "tqdm", lambda **options: totals.append(options["total"]) or bar(**options))
    (tmp_path / "texts").write_text("a\nbird\nsings", encoding="utf-8")
    files = [tmp_path / "texts"] if source == "file" else ["-"]
    assert len(ok(*encode, *files, "-t", "at dawn", "-o", "-", stdin="a\n").splitlines()) == (4 if source == "file" else 2)
    assert totals == [total]


def test_no_lines_give_no_rows(encode, tmp_path):
    (tmp_path / "empty").touch()
    assert ok(*encode, tmp_path / "empty", "-o", "-") == ""
    assert ok(*encode, tmp_path / "empty", "--similar", "3", "-o", tmp_path / "x.npy").endswith(": 0 vectors of 8 numbers\n")
    vectors = np.load(tmp_path / "x.npy")
    assert (vectors.shape, vectors.dtype) == ((0, 8), np.float32)


@pytest.mark.filterwarnings("default::mha_text.TruncationWarning")
def test_long_texts_give_one_warning_on_standard_error(encode):
    done = run(*encode, *text_options("bird " * 20, "a", "tree " * 20), "-o", "-")
    warning = "warning: 2 of 3 texts are longer than 8 tokens, and were cut there\n"
    assert (done.exit_code, done.stderr, len(done.stdout.splitlines())) == (0, warning, 3)


# a folder of vectors

pyarrow = needs.installed("pyarrow")


@pyarrow
def test_a_folder_is_written_and_summed_up(encode, tmp_path):
    write(tmp_path / "x.jsonl", [*TEXTS, "a " * 20])
    command = (*encode, tmp_path / "*.jsonl", "--field", "text", "-o", tmp_path / "out")
    first, second = (ok(*command).splitlines() for _ in range(2))
    assert first[0] == f"wrote {tmp_path / 'out'}: 1 file of 24 vectors of 8 numbers"
    assert first[1].startswith("24 texts in ")
    cut = "1 text is longer than 8 tokens, and was cut there"
    assert first[2] == cut
    assert second == [f"nothing was left to do: {tmp_path / 'out'} has 1 file of 24 vectors of 8 numbers", cut]
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert manifest["sources"][0]["path"] == "x.jsonl"


@pyarrow
def test_a_whole_folder_starts_no_worker(encode, tmp_path, monkeypatch):
    write(tmp_path / "x.txt", TEXTS)
    command = (*encode, tmp_path / "x.txt", "-o", tmp_path / "out")
    ok(*command)
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert ok(*command, "--workers", "2").startswith("nothing was left to do: ")
    (tmp_path / "out/_SUCCESS").unlink()
    assert "workers need distributed" in fails(1, *command, "--workers", "2")


@pyarrow
def test_a_folder_lists_rows_without_texts(encode, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    command = (*encode, tmp_path / "x.txt", "-o", tmp_path / "out")
    assert f"{tmp_path / 'x.txt'}, line 2: not valid UTF-8" in fails(1, *command)
    printed = ok(*command[:-1], tmp_path / "other", "--skip-invalid").splitlines()
    assert printed[-1] == f"1 row has no text that can be encoded: see {tmp_path / 'other/_rejected/rejected.parquet'}"


@pyarrow
def test_one_array_and_json_lines_come_from_the_same_files(encode, expected, tmp_path):
    texts = [text for text in TEXTS if text.strip()]
    write(tmp_path / "x.parquet", texts)
    command = (*encode, tmp_path / "x.parquet", "--column", "text")
    ok(*command, "-o", tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected(texts))
    close(rows(ok(*command, "-o", "-")), expected(texts))


# other errors: exit code 1


def test_invalid_utf8_is_reported_with_file_and_line(encode, tmp_path):
    (tmp_path / "texts").write_bytes(b"a\nbird\ncaf\xe9\n")
    assert f"{tmp_path / 'texts'}, line 3: not valid UTF-8 (byte 4 of the line" in fails(1, *encode, tmp_path / "texts")
    assert "standard input, line 1: not valid UTF-8" in fails(1, *encode, "-", stdin=b"\xff\n")
    assert "UTF-8" in fails(1, *encode, "-t", "a", "--text", os.fsdecode(b"caf\xe9"))


def test_outputs_that_cannot_be_written_are_reported_before_any_work(encode, tmp_path):
    path, arguments = tmp_path / "nowhere" / "x.npy", ("encode", "-m", tmp_path / "no model", "-t", "a")
    assert fails(1, *arguments, "-o", path) == f"error: {path} cannot be written: No such file or directory\n"
    (tmp_path / "d.npy").mkdir()
    assert "d.npy is a directory; expected the name of a file" in fails(1, *encode, "-t", "a", "-o", tmp_path / "d.npy")


def test_a_vector_that_json_cannot_represent_is_an_error_with_the_number_of_its_text(tiny_model, encode, tmp_path):
    from safetensors.numpy import load_file, save_file

    weights = load_file(tiny_model / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, tiny_model / "model.safetensors")
    message = fails(1, *encode, "-t", "a bird", "-t", "a tree", "-o", "-")
    assert message.startswith("error: the vector of text 1 contains NaN or infinity, which JSON cannot represent: ")
    ok(*encode, "-t", "a bird", "-o", tmp_path / "x.npy")
    assert np.isnan(np.load(tmp_path / "x.npy")).all()


def test_a_closed_standard_output_is_an_error(tiny_model):
    done = processes.run(["sh", "-c", '"$@" >&-', "sh", COMMAND], "encode", "--model", tiny_model, "-t", "a bird")
    assert (done.returncode, done.stderr) == (1, "mha: standard output is closed; write >/dev/null to discard it\n")


def test_a_missing_model_is_named_verbatim(tmp_path):
    assert fails(1, "encode", "-t", "a", "-m", tmp_path / "[red]x") == f"error: no directory {tmp_path}/[red]x\n"


@pytest.mark.parametrize("broken", ["line", "model"])
def test_a_failure_leaves_the_old_output_and_nothing_else(encode, tiny_model, tmp_path, broken):
    # the line with invalid UTF-8 comes after a window of 4096 texts was written
    (tmp_path / "texts").write_bytes(b"a bird\n" * 5000 + (b"\xff\n" if broken == "line" else b""))
    if broken == "model":
        (tiny_model / "tokenizer.json").unlink()
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / "old.npy").write_bytes(b"as it was")
    for name in ("old.npy", "new.npy"):
        fails(1, *encode, tmp_path / "texts", "-o", folder / name)
        assert [path.name for path in folder.iterdir()] == ["old.npy"]
        assert (folder / "old.npy").read_bytes() == b"as it was"


# the program in its own process


@pytest.mark.parametrize("options", [("--output", "-"), ("--similar", "1")])
def test_a_closed_pipe_ends_it_without_a_message(tiny_model, tmp_path, options):
    (tmp_path / "texts").write_text("a bird\n" * 500)
    read, write = os.pipe()
    os.close(read)  # as head does after its last line
    done = processes.run([COMMAND], "encode", "--model", tiny_model, tmp_path / "texts", *options, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_program_is_installed_and_runs(tiny_model, expected):
    done = processes.run([COMMAND], "encode", "-m", tiny_model, "-", "-o", "-", text="a bird\ndawn")
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_array_equal(rows(done.stdout), expected(["a bird", "dawn"]))


@pytest.mark.skipif(sys.platform == "win32", reason="no shell of POSIX")
def test_a_closed_standard_input_is_an_error_in_one_line(tiny_model, tmp_path):
    command = f"{COMMAND} encode - --model '{tiny_model}' --output '{tmp_path / 'x.npy'}' <&-"
    done = processes.run(["sh", "-c", command], status=1)
    assert done.stderr == "error: standard input is closed; give FILE..., or --text T\n"
    assert not (tmp_path / "x.npy").exists()
