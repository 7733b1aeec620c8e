"""The command in narrow terminals: no word is broken, nothing is left out, and help shows what to write."""

import io
import json
import re

import pytest
from command import ok
from processes import printed
from rich.console import Console
from rich.text import Text
from suite import MHA
from typer.testing import CliRunner

import mha_core as mha
from mha_core.cli.app import app
from mha_core.cli.tables import table

COMMANDS = ("encode", "attend", "backends", "explain", "conform", "bench", "report", "new-plugin")
EXPLAIN = ("explain", "encoder_layer", "x=8x128x512")


def run(*arguments, width=80, **settings):
    settings = {"COLUMNS": str(width), "LINES": "50", "TERM": "dumb", **settings}
    return CliRunner(env=settings).invoke(app, [str(word) for word in arguments], prog_name="mha")


def words(text):
    return set(re.findall(r"[\w.:/()=-]+", text))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_explain_breaks_no_word_and_leaves_nothing_out(width):
    wide, narrow = (run(*EXPLAIN, width=columns).stdout for columns in (400, width))
    assert words(wide) - words(narrow) <= words("operation not chosen"), "headings of empty cells may go"
    assert max(map(len, narrow.splitlines())) <= width


def table_lines(width, *rows):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(console, ("case", "numpy", "torch"), [tuple(map(Text, row)) for row in rows], title="times"))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_that_does_not_fit_becomes_a_block():
    row = ("a-long-name", "1234 ms", "")
    assert table_lines(20, row) == ["times", "a-long-name", "  numpy 1234 ms"]
    assert any(line.startswith("│ a-long-name │") for line in table_lines(60, row))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_names_not_types(command):
    short, long = run(command, "-h"), run(command, "--help")
    assert short.exit_code == 0 and short.stdout == long.stdout
    assert not re.search(r"<\w+[\[\]\w]*>|\{\w+\}", short.stdout), "no <str>, no {TEXT}"
    assert "Example:" in short.stdout


@pytest.mark.parametrize("arguments", [["encode", "-h"], ["-h"]], ids=" ".join)
def test_help_fits_a_narrow_terminal_in_whole_sentences(arguments):
    """In a process of its own: typer's runner forces a width of 80."""
    text = printed(MHA, *arguments, COLUMNS="60")
    assert 50 < max(map(len, text.splitlines())) <= 60
    assert "..." not in text.partition("Commands:")[2]


def test_the_version_and_completion_have_their_usual_options():
    assert run("-V").stdout == run("--version").stdout == f"mha-core {mha.__version__}\n"
    assert "--install-completion" in run("-h").stdout


def test_an_explanation_in_json_has_what_the_table_shows():
    record = json.loads(run(*EXPLAIN, "--json").stdout)
    assert (record["operation"], record["backend"], record["dtype"]) == ("encoder_layer", "numpy", "float32")
    assert record["runs"] == "chunks" and record["arrays"]["x"] == [8, 128, 512]
    whole = json.loads(
        run("explain", "multi_head_attention", "x=3x4", *(f"w_{x}=4x4" for x in "qkvo"), "num_heads=2", "--json").stdout
    )
    assert [call["operation"] for call in whole["calls"]].count("linear") == 4


def in_a_terminal(width, *arguments):
    """Return the lines that a terminal of this width shows, without colours."""
    done = run(*arguments, width=width, FORCE_COLOR="1", TERM="xterm-256color", TTY_COMPATIBLE="1")
    assert done.output, done.exception
    return re.sub(r"\x1b\[[\d;]*m", "", done.output).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_terminal_gets_lines_that_end_between_words(width, tiny_model, tmp_path):
    missing = "a-directory-that-does-not-exist"
    commands = [
        ("attend", "the swift sleeps on the wing", "--model", tiny_model, "--layer", 0),
        ("attend", "x", "--model", missing),
        ("encode", "--model", tiny_model, *("--text", "unpronounceableness " * 5) * 2, "--similar", 1),
    ]
    for command in commands:
        lines, whole = in_a_terminal(width, *command), in_a_terminal(500, *command)
        assert max(map(len, lines)) <= width, lines
        assert len(lines) > len(whole) and words("\n".join(whole)) == words("\n".join(lines))


HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\rb"


@pytest.mark.filterwarnings("ignore::mha_text.models.batches.TruncationWarning")
def test_text_from_elsewhere_does_not_control_the_terminal(tiny_model, tmp_path):
    (tmp_path / "texts.txt").write_text(f"the {HOSTILE} bird\nthe tree\n", newline="")
    ok("encode", "--model", tiny_model, tmp_path / "texts.txt", "--output", tmp_path / "x.npy")
    for command in (
        ("search", HOSTILE, "--in", tmp_path / "x.npy", "--texts", tmp_path / "texts.txt", "--model", tiny_model),
        ("encode", "--model", tiny_model, "--similar", 1, "--text", HOSTILE, "--text", "b"),
        ("attend", "x", "--model", f"{tmp_path}/{HOSTILE}"),
        ("encode", "--model", tiny_model, tmp_path / HOSTILE, "--output", tmp_path / "y.npy"),
        ("explain", "attention", f"query={HOSTILE}"),
    ):
        done = run(*command, width=500, FORCE_COLOR="1", TERM="xterm-256color", TTY_COMPATIBLE="1")
        text = re.sub(r"\x1b\[[\d;]*m", "", done.output)
        assert not re.search(r"[^\n -~\xa0-\U0010ffff]", text), (command[0], text)
        assert r"\x1b" in text, (command[0], text)


def test_elsewhere_an_error_is_one_line(tiny_model):
    done = run("attend", "x", "--model", "a-directory-that-does-not-exist", width=40)
    assert len(done.stderr.splitlines()) == 1
