"""The arguments of ``mha encode``, ``search`` and ``attend``: usage lines, and usage errors, whose exit code is 2."""

import needs
import numpy as np
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
        ("is for a folder of vectors; add --output vectors/\n", (*table, "--id", "key")),
        ("is for a folder of vectors; add --output vectors/\n", (*encode, "-t", "a", "--precision", "int8")),
        ("is for a folder of vectors; add --output vectors/, not x.npy\n", (*table, "--skip-invalid", "-o", "x.npy")),
        ("'int4' is none of float32, float16, int8, binary", (*table, "--precision", "int4", "-o", "out")),
        ("a scheduler has workers; leave out one of the two", (*table, "-w", "2", "--scheduler", "tcp://x:1", "-o", "y")),
        ("leave out --text, - and --similar", (*table, "--workers", "2")),
        *(("leave out --text, - and --similar", (*table, "-o", "out", *more)) for more in (("-t", "a"), ("-k", "2"), ("-",))),
        ("no file matches", (*encode, tmp_path / "*.tsv")),
    ):
        assert message in fails(2, *arguments)
    assert "x.csv has no column 'words': its columns are key, text" in fails(1, *table[:-1], "words", "-o", tmp_path / "out")


def test_a_device_that_the_backend_lacks_is_a_usage_error_that_says_which_backend_has_it(tiny_model, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.float32))
    for arguments in (("encode", "-t", "a"), ("search", "a", "--in", tmp_path / "x.npy")):
        for device, message in (
            ("cuda:1", "write --backend torch --device cuda:1\n"),
            ("moon", 'Device not understood. Only "cpu" is allowed, but received: moon\n'),
        ):
            error = fails(2, *arguments, "--model", tiny_model, "--backend", "numpy", "--device", device)
            assert error.endswith(f"Error: Invalid value for --device: backend 'numpy' has no device {device!r}: {message}")


@needs.installed("torch")
def test_the_library_says_why_it_lacks_a_device(tiny_model):
    import torch

    device = f"cuda:{torch.cuda.device_count()}"
    error = fails(2, "encode", "-t", "a", "--model", tiny_model, "--backend", "torch", "--device", device)
    assert f"Error: Invalid value for --device: backend 'torch' has no device {device!r}: " in error and "write" not in error
