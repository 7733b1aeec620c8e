"""``mha attend``: what it prints, its pages and its pictures, on any backend, and its errors."""

import base64
import json
import os
import re
from io import BytesIO, StringIO, TextIOWrapper

import numpy as np
import pytest
from command import fails, ok, run
from rich.color import Color
from rich.console import Console
from tiny_models import WORDS, close, edit

import mha_text as mt
from mha_text.cli.attend import page, picture, terminal
from mha_text.cli.attend.maps import AttentionMaps, Choice

TEXT = "a bird sings at dawn"
EMPTY = "the text is empty: its tokens are special ones\n"
DIGITS = "each row attends to the columns; digits are tenths of a weight"


@pytest.fixture
def attend(tiny_model):
    return ("attend", TEXT, "--model", tiny_model)


@pytest.fixture
def expected(tiny_model):
    """The weights (layers, heads, L, L) and the tokens."""
    weights, tokens = mt.TextEncoder.from_pretrained(tiny_model).attention_maps(TEXT)
    return np.asarray(weights), tokens


def planted(count=6, *, layers=2, heads=3, tokens=None):
    """Return attention maps with random weights whose rows add up to 1."""
    weights = np.random.default_rng(5).exponential(size=(layers, heads, count, count)).astype(np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    tokens = tuple(tokens or (f"t{at}" for at in range(count)))
    return AttentionMaps("text", tokens, (False,) * count, weights, "tiny", "numpy")


def printed(maps, choice, width=200, **settings):
    """Return what is printed on a terminal of this width."""
    console = Console(file=StringIO(), width=width, highlight=False, soft_wrap=True, legacy_windows=False, **settings)
    terminal.show(maps, choice, console)
    return console.file.getvalue()


def plain(maps, choice, width=200, **settings):
    """Return the lines that are printed on a terminal of this width, without colours."""
    shown = printed(maps, choice, width, force_terminal=True, **settings)
    return re.sub(r"\x1b\[\d*m", "", shown).splitlines()


def tenths(row, zero="·"):
    return [str(min(9, int(10 * weight))).replace("0", zero) for weight in row]


def page_of(path, *arguments):
    """Run the command, and return the text of its page and the data that the page's script reads, with weights as numbers."""
    ok(*arguments, "--output", path)
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    stored = np.frombuffer(base64.b64decode(data["weights"]), dtype="<u2") / data["one"]
    return text, data | {"weights": stored.reshape(data["layers"], data["heads"], len(data["tokens"]), len(data["tokens"]))}


# in the terminal


def test_without_colours_a_row_is_its_tenths_and_its_largest_weights(attend, expected):
    weights, tokens = expected
    lines = ok(*attend, "--layer", 0, "--head", 1).splitlines()
    assert lines[0] == "tiny on numpy: layer 0 of 0 to 1, head 1 of 0 to 1"
    assert len(lines) == 3 + len(tokens)
    for at, (line, row) in enumerate(zip(lines[3:], weights[0, 1], strict=True)):
        number, token, *cells = line.split()
        assert (number, token) == (str(at), tokens[at])
        assert cells[: len(tokens)] == tenths(row)
        first, second = np.argsort(-row, kind="stable")[:2]
        assert cells[len(tokens) :] == [f"{row[first]:.2f}", tokens[first], f"{row[second]:.2f}", tokens[second]]


def test_the_most_telling_head_is_shown_by_default(attend, expected):
    weights, tokens = expected
    maps = AttentionMaps(TEXT, tuple(tokens), tuple(token.startswith("[") for token in tokens), weights, "tiny", "numpy")
    for options, choice, what in (
        ((), Choice(None, None), "the head"),
        (("--layer", 1), Choice(1, None), "the head of this layer"),
        (("--head", 1), Choice(None, 1), "the layer"),
    ):
        title, legend, *_ = ok(*attend, *options).splitlines()
        assert title == "tiny on numpy: layer {} of 0 to 1, head {} of 0 to 1".format(*choice.one(maps))
        assert legend == f"{DIGITS}; {what} with the largest weights between words that are not neighbours"


def test_the_legend_says_by_which_pairs_of_tokens_the_head_was_chosen():
    for tokens, pairs in (
        ("a bird sings", " between words that are not neighbours"),
        ("a bird .", " between words"),
        ("a . !", ""),
    ):
        _, legend, *_ = printed(planted(3, tokens=tokens.split()), Choice(None, None)).splitlines()
        assert legend == f"{DIGITS}; the head with the largest weights{pairs}"


def test_the_mean_of_the_last_layer_can_be_chosen(attend, expected):
    weights, _ = expected
    title, legend, _, *lines = ok(*attend, "--head", "mean").splitlines()
    assert (title, legend) == ("tiny on numpy: layer 1 of 0 to 1, mean of 2 heads", DIGITS)
    largest = [float(re.findall(r"\d\.\d\d", line)[0]) for line in lines]
    np.testing.assert_allclose(largest, weights[1].mean(axis=0).max(axis=-1), atol=0.0051)


@pytest.mark.parametrize(("system", "number"), [("truecolor", r"48;2;(\d+);(\d+);(\d+)"), ("256", r"48;5;(\d+)")])
def test_with_colours_a_larger_weight_is_never_a_darker_cell(system, number):
    """The nearest of 256 colours to a blend of two alternate between grey and blue, so that small weights look like noise."""
    maps = planted(64)
    maps.weights[0, 0, 0] = np.linspace(0, 1, 64) ** 2
    row = printed(maps, Choice(0, 0), force_terminal=True, color_system=system).splitlines()[3]
    cells = [[*map(int, cell.groups())] for cell in re.finditer(rf"\x1b\[{number}m", row)]
    colours = [cell if system == "truecolor" else Color.from_ansi(*cell).get_truecolor() for cell in cells]
    brightness = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in colours]
    assert len(set(brightness)) > 8 and brightness == sorted(brightness)


def test_a_terminal_with_few_or_no_colours_shows_digits(monkeypatch):
    digits = printed(planted(), Choice(1, 2)).splitlines()
    assert plain(planted(), Choice(1, 2), color_system="standard") == digits
    assert digits[1] == DIGITS
    colours = printed(planted(), Choice(1, 2), force_terminal=True, color_system="256")
    assert "\x1b[48;" in colours and "each row attends to the columns\x1b" in colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert plain(planted(), Choice(1, 2), color_system="truecolor") == digits


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks_are_question_marks(encoding):
    maps = planted(3, tokens=["天気", "été", "unpronounceableness"])
    sent = BytesIO()
    console = Console(file=TextIOWrapper(sent, encoding=encoding, write_through=True), width=200, highlight=False)
    terminal.show(maps, Choice(0, 0), console)
    first, second, third = (line.split() for line in sent.getvalue().decode(encoding).splitlines()[3:])
    assert first[1] == "??" and second[1] == ("?t?" if encoding == "ascii" else "été") and third[1] == "unpronounceab~"
    assert [line[2:5] for line in (first, second, third)] == [tenths(row, ".") for row in maps.weights[0, 0]]


def test_columns_that_do_not_fit_are_counted():
    maps = planted(60)
    lines = plain(maps, Choice(0, 0), width=60, color_system=None)
    assert len(lines) == 4 + 60 + 2 and max(map(len, lines)) <= 60  # the legend takes two lines
    first = int(re.search(r"columns (\d+) to 59 do not fit", lines[-2])[1])
    assert 10 < first < 60
    assert len(printed(maps, Choice(0, 0), width=60).splitlines()) == 3 + 60  # a file has no width


def test_a_narrow_terminal_shows_all_columns_and_only_the_largest_weight():
    lines = plain(planted(20), Choice(0, 0), width=40, color_system=None)
    assert len(lines) == 5 + 20 and max(map(len, lines)) <= 40  # the title and the legend take two lines each
    assert all(len(re.findall(r"\d\.\d\d t", line)) == 1 for line in lines[5:])


@pytest.mark.parametrize("width", [200, 60])
@pytest.mark.parametrize("count", [6, 13, 101])
def test_columns_have_the_numbers_of_their_tokens_above_them(count, width):
    """Each token attends to itself, so the only weight of its row stands below the last digit of its own number."""
    maps = planted(count)
    maps.weights[:] = np.eye(count)
    lines = plain(maps, Choice(0, 0), width, color_system=None)
    start = next(at for at, line in enumerate(lines) if line.endswith("weight")) + 1
    labels = {int(label[0]): label.end() - 1 for label in re.finditer(r"\d+", lines[start])}
    assert len(labels) >= (count if count < 10 else min(count, 30) // 5) and 0 in labels
    left = len(f"{count - 1} t{count - 1} ")
    assert labels == {at: lines[start + 1 + at].find("9", left) for at in labels}


def test_brackets_in_a_token_are_not_markup_and_wide_letters_count_as_two_columns():
    text = printed(planted(3, tokens=["[red]", "天気予報天気予報天気", "[/]"]), Choice(0, 0))
    assert text.count("[red]") > 1 and "天気予報天気…" in text


# a page


def test_the_page_holds_the_weights_of_every_head_and_opens_on_the_one_that_was_asked_for(attend, expected, tmp_path):
    weights, tokens = expected
    text, data = page_of(tmp_path / "page.html", *attend)
    assert data["tokens"] == tokens
    assert f"The page opens on layer {data['layer']}, head {data['head']}: the head with the largest weights" in text
    close(data["weights"], weights, 0.5001 / 65535)
    for name in ("torch", "array_api_strict"):
        text, data = page_of(tmp_path / f"{name}.html", *attend, "--backend", name)
        assert f"backend <b>{name}</b>" in text
        np.testing.assert_allclose(data["weights"], weights, atol=2 / 65535)
    assert data["token"] is None
    _, data = page_of(tmp_path / "page.html", *attend, "--layer", 0, "--head", 1)
    assert (data["layer"], data["head"]) == (0, 1)
    for token in ("bird", "2"):
        _, data = page_of(tmp_path / "page.html", *attend, "--token", token)
        assert data["tokens"][data["token"]] == "bird" and data["token"] == 2


def test_special_tokens_are_named_but_no_unknown_or_masked_word(minilm, tmp_path):
    text = "A [MASK] \N{FACE WITH TEARS OF JOY}."
    page, data = page_of(tmp_path / "page.html", "attend", text, "--model", minilm)
    assert data["tokens"] == ["[CLS]", "a", "[MASK]", "[UNK]", ".", "[SEP]"]
    assert data["special"] == [True, False, False, False, False, True] and "without [CLS], [SEP]" in page


def test_a_large_page_is_written_with_a_warning_of_its_size(monkeypatch):
    file = BytesIO()
    page.write(planted(), Choice(None, None), file)  # a page of usual size: no warning
    monkeypatch.setattr(page, "_LARGE", 1e6)
    with pytest.warns(page.LargePageWarning) as caught:
        page.write(planted(), Choice(None, None), file)
    size = f"{len(file.getvalue()) / 2e6:.0f} MB"
    assert str(caught[0].message).startswith(f"the page has {size}, for 6 maps of 6 x 6 weights")


# a picture


def pixels(path):
    from PIL import Image

    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("head", [None, 2])
def test_a_picture_has_a_map_for_each_head_that_was_asked_for(layer, head):
    maps = planted()
    axes = [axis for axis in picture.drawn(maps, Choice(layer, head)).axes if axis.get_images()]
    shown = [np.asarray(axis.get_images()[0].get_array()) for axis in axes]
    layers = range(2) if layer is None else [layer]
    heads = range(3) if head is None else [head]
    np.testing.assert_array_equal(shown, [maps.weights[at, each] for at in layers for each in heads])
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == (list(maps.tokens) if layer == 1 and head == 2 else [])


def test_the_command_writes_a_picture_and_dollars_in_a_token_are_not_a_formula(attend, tmp_path, expected):
    path = tmp_path / "maps.png"
    assert ok(*attend, "--output", path) == f"wrote {path}: {len(expected[1])} tokens in 2 layers of 2 heads\n"
    assert pixels(path).std() > 20
    with path.open("wb") as file:
        picture.write(planted(3, tokens=["$", r"$\nonsense$", "_"]), Choice(0, 0), file)
    assert pixels(path).std() > 20


LACKING = "\U000e0fff"  # in no alphabet, and so in no font


def test_letters_are_taken_from_any_font_that_is_installed(tmp_path):
    """The default font lacks this letter, so matplotlib alone would warn and draw a box, though it ships a font that has it."""
    figure = picture.drawn(planted(3, tokens=["\N{SCRIPT SMALL G}", "a", "b"]), Choice(0, 0))
    figure.savefig(tmp_path / "maps.png")
    label = figure.axes[0].get_yticklabels()[0]
    assert label.get_text() == "\N{SCRIPT SMALL G}" and len(label.get_fontfamily()) == 2


def test_letters_that_no_font_has_are_boxes_and_one_warning(tmp_path):
    maps = planted(4, tokens=[LACKING, f"a{LACKING}", "\U000e0ffe", "$"])
    with pytest.warns(picture.MissingLettersWarning) as caught:
        figure = picture.drawn(maps, Choice(0, 0))
    figure.savefig(tmp_path / "maps.png")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["□", "a□", "□", r"\$"]
    assert [str(each.message) for each in caught] == [
        "no installed font has 2 of the letters, which are drawn as □; a browser may have them: use --output page.html"
    ]
    with (tmp_path / "maps.png").open("wb") as file:
        picture.write(maps, Choice(None, None), file)  # no token is written


@pytest.mark.filterwarnings("default::mha_text.cli.attend.picture.MissingLettersWarning")
def test_the_command_says_in_one_line_that_letters_are_missing(tiny_model, tmp_path):
    folder = tiny_model.rename(tmp_path / f"$of_{LACKING}")
    done = run("attend", TEXT, "--model", folder, "--output", tmp_path / "maps.png")
    assert done.exit_code == 0 and done.stderr.startswith("warning: no installed font has 1 of the letters")
    assert done.stderr.count("\n") == 1


# errors


def test_a_file_must_end_in_html_or_png_and_only_a_file_can_be_opened(attend):
    message = "'page.pdf' does not end in .html or .png; give such a file, or - for the terminal"
    assert message in fails(2, *attend, "--output", "page.pdf")
    assert "--open: there is no file to open: add --output page.html" in fails(2, *attend, "--open")


@pytest.mark.parametrize("option", ["layer", "head"])
@pytest.mark.parametrize("asked", [2, -1])
def test_a_missing_layer_or_head_is_refused_and_no_file_is_left(attend, option, asked, tmp_path):
    message = f"error: --{option} is {asked}; the model has {option}s 0 to 1\n"
    assert fails(1, *attend, f"--{option}", asked) == message
    assert fails(1, *attend, f"--{option}", asked, "--output", tmp_path / "page.html") == message
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_an_empty_text_is_its_special_tokens_and_a_text_without_tokens_or_not_in_unicode_is_refused(tiny_model, tmp_path):
    done = run("attend", "", "--model", tiny_model)
    assert (done.exit_code, done.stderr) == (0, EMPTY)
    assert [line.split()[1] for line in done.stdout.splitlines()[3:]] == ["[CLS]", "[SEP]"]
    done = run("attend", " ", "--model", tiny_model, "--output", tmp_path / "maps.png")
    assert (done.exit_code, done.stderr) == (0, EMPTY)
    edit(tiny_model / "tokenizer.json", post_processor=None)
    assert fails(1, "attend", "", "--model", tiny_model) == "error: the text '' has no tokens; expected at least one\n"
    message = "error: text cannot be written as UTF-8: surrogates not allowed at character 3\n"
    assert fails(1, "attend", os.fsdecode(b"caf\xe9"), "--model", tiny_model) == message


@pytest.mark.filterwarnings("default::mha_text.models.batches.TruncationWarning")
def test_a_long_text_is_cut_with_a_warning(tiny_model):
    done = run("attend", " ".join(WORDS[4:10] * 3), "--model", tiny_model)
    assert done.exit_code == 0 and done.stderr == "warning: 1 of 1 texts are longer than 8 tokens, and were cut there\n"
    assert len(done.stdout.splitlines()) == 3 + 8


def test_an_output_that_cannot_be_written_is_reported_before_any_work_and_an_error_leaves_the_old_file(attend, tmp_path):
    assert "cannot be written" in fails(1, *attend[:3], tmp_path / "no model", "--output", tmp_path / "nowhere" / "page.html")
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert "no directory" in fails(1, *attend[:3], tmp_path / "none", "--output", page)
    assert "nump" in fails(1, *attend, "--backend", "nump", "--output", page)
    assert page.read_text() == "mine"


# opening what was written


@pytest.mark.parametrize("status", [0, 3])
def test_what_was_written_is_opened_if_asked_for(attend, tmp_path, monkeypatch, status):
    opened = []
    monkeypatch.setattr("typer.launch", lambda path: opened.append(path) or status)
    done = run(*attend, "--output", tmp_path / "page.html", "--open")
    assert done.exit_code == bool(status) and ("nothing on this machine opens" in done.stderr) == bool(status)
    assert done.stdout.startswith("wrote ")
    assert opened == [str(tmp_path / "page.html")] and (tmp_path / "page.html").exists()
