"""The arguments of ``mha encode``, ``search`` and ``attend``: usage lines, and usage errors, whose exit code is 2."""

from command import fails, ok
from written_texts import TEXTS, write


def test_usage_lines_name_arguments_without_braces():
    for name, usage in (("encode", "[OPTIONS] [FILE|-]..."), ("search", "[OPTIONS] QUERY..."), ("attend", "[OPTIONS] TEXT")):
        assert ok(name, "--help").splitlines()[0] == f"Usage: mha {name} {usage}"


def test_usage_errors_say_what_to_give(tiny_model, tmp_path):
    encode = ("encode", "--model", tiny_model)
    table = (*encode, write(tmp_path / "x.csv", TEXTS), "--column", "text")
    for message, arguments in (
        ("give FILE..., - for standard input, or --text T", encode),
        ("'nowhere.txt' does not exist", (*encode, "nowhere.txt")),
        ("'--model'", ("encode", "-t", "a")),
        ("'x.txt' does not end in .npy; give x.npy, a folder such as vectors/, or -", (*encode, "-t", "a", "-o", "x.txt")),
        ("--similar prints to standard output too; give a file", (*encode, "-t", "a", "-k", "1", "-o", "-")),
        ("is for --similar; --output - prints vectors as JSON", (*encode, "--json", "-t", "a")),
        *(("'--similar'", (*encode, "-t", "a", "--similar", wrong)) for wrong in ("0", "-1", "many")),
        ("encod", ("encod",)),
        ("is for a folder of vectors; add --output vectors/", (*table, "--id", "key")),
        ("is for a folder of vectors; add --output vectors/", (*table, "--skip-invalid", "-o", "x.npy")),
        ("'int4' is none of float32, float16, int8, binary", (*table, "--precision", "int4", "-o", "out")),
        ("a scheduler has workers; leave out one of the two", (*table, "-w", "2", "--scheduler", "tcp://x:1", "-o", "y")),
        ("leave out --text, - and --similar", (*table, "--workers", "2")),
        *(("leave out --text, - and --similar", (*table, "-o", "out", *more)) for more in (("-t", "a"), ("-k", "2"), ("-",))),
        ("no file matches", (*encode, tmp_path / "*.tsv")),
    ):
        assert message in fails(2, *arguments)
    assert "x.csv has no column 'words': its columns are key, text" in fails(1, *table[:-1], "words", "-o", tmp_path / "out")
