"""The tables of docs/field.md are true: each cell that can be tried on a CPU is tried, and must state the result."""

import re

import pytest
from field_outcomes import PROBES
from field_peers import ATTEND, COLUMNS, PARAMETERS
from project import ROOT

PAGES = (ROOT / "docs" / "field.md", ROOT / "README.md")
MARK = "<!-- readme table -->"
TEXT = PAGES[0].read_text(encoding="utf-8")


def tables(text):
    """{feature: {column: cell}} of all tables that begin with ``| feature |``, without note numbers."""
    features, header = {}, None
    for line in text.splitlines():
        cells = [re.sub(r"\s*\(\d+(, \d+)*\)", "", cell).strip(" *") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif cells[0] == "feature":
            header = cells[1:]
        elif header and set(cells[0]) - set("-: "):
            assert cells[0] not in features, f"{cells[0]} is listed twice"
            features[cells[0]] = dict(zip(header, cells[1:], strict=True))
    return features


FIELD = tables(TEXT.partition("<!-- end -->")[2])
READ = {
    "runs on torch tensors",
    "runs on JAX arrays",
    "has run on CUDA",
    "cache for decoding",
    "paged cache",
    "FP8",
    "several GPUs",
    "reports which kernel runs, and why no other",
    "public test suite for other implementations",
    "pretrained text encoders",
}
"""Rows that are not run, but read in documentation, signatures and this project's own pages."""


@pytest.mark.parametrize("column", ATTEND)
@pytest.mark.parametrize("feature", PROBES)
def test_cell_says_what_comes_out(feature, column, rng):
    assert PROBES[feature](column, rng) == FIELD[feature][column]


def test_the_readme_says_how_many_rows_there_are():
    assert f"has {len(FIELD)} rows" in PAGES[1].read_text(encoding="utf-8")


def test_every_row_is_run_or_said_to_be_read():
    assert set(FIELD) == set(PROBES) | READ
    assert not set(PROBES) & READ
    assert all(tuple(row) == COLUMNS for row in FIELD.values())


@pytest.mark.parametrize("column", PARAMETERS)
def test_peer_has_no_argument_that_the_table_does_not_know(column):
    actual, known = PARAMETERS[column]
    assert actual() == set(known.split())


def test_every_note_exists_and_is_used():
    body, _, notes = TEXT.partition("## Notes")
    used = {int(n) for group in re.findall(r"\((\d+(?:, \d+)*)\)", body) for n in group.split(", ")}
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", notes, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert used == set(numbers)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_short_table_is_part_of_the_long_one(page):
    """The one in docs/field.md, and the one in the README."""
    short = tables(page.read_text(encoding="utf-8").partition(MARK)[2].partition("<!-- end -->")[0])
    assert 8 <= len(short) <= 16
    for feature, row in short.items():
        assert row == {column: FIELD[feature][column] for column in row}, feature
