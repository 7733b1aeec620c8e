"""The tables of docs/field.md are true: each cell that can be tried on a CPU is tried, and must state the result."""

import re

import pytest
from field.cache_names import NAMES
from field.caches import COLUMNS as CACHE_COLUMNS
from field.caches import READ as CACHES_READ
from field.caches import RUN
from field.functions import COLUMNS as FUNCTION_COLUMNS
from field.functions import PARAMETERS as FUNCTION_PARAMETERS
from field.functions import READ as FUNCTIONS_READ
from field.functions import ROWS
from field.functions import RUN as RUN_WITH_FUNCTIONS
from field.outcomes import PROBES
from field.peer_caches import CELLS
from field.peers import ATTEND, COLUMNS, PARAMETERS
from project import ROOT

PAGES = (ROOT / "docs" / "field.md", ROOT / "README.md")
MARK = "<!-- readme table -->"
TEXT = PAGES[0].read_text(encoding="utf-8")


def tables(text, first="feature"):
    """{feature: {column: cell}} of all tables that begin with ``| feature |``, or another word, without note numbers."""
    rows, header = {}, None
    for line in text.splitlines():
        cells = [re.sub(r"\s*\(\d+(, \d+)*\)", "", cell).strip(" *") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif cells[0] == first:
            header = cells[1:]
        elif header and set(cells[0]) - set("-: "):
            assert cells[0] not in rows, f"{cells[0]} is listed twice"
            rows[cells[0]] = dict(zip(header, cells[1:], strict=True))
    return rows


FIELD = tables(TEXT.partition("<!-- end -->")[2])
CACHES = tables(TEXT, "cache")
FUNCTIONS = tables(TEXT, "function")
ARGUMENTS = PARAMETERS | FUNCTION_PARAMETERS
READ = {
    "runs on torch tensors",
    "runs on JAX arrays",
    "has run on CUDA",
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


@pytest.mark.parametrize("column", RUN)
@pytest.mark.parametrize("feature", CACHES)
def test_cell_says_what_a_cache_does(feature, column, rng):
    text, check = CELLS.get((feature, column), (CACHES_READ.get((feature, column), ""), None))
    assert CACHES[feature][column] == text
    if check is not None:
        check(rng)


@pytest.mark.parametrize("column", RUN_WITH_FUNCTIONS)
@pytest.mark.parametrize("feature", ROWS)
def test_cell_says_what_a_function_does(feature, column, rng):
    if feature not in FUNCTIONS_READ or column == "mha-core":
        assert ROWS[feature](column, rng) == FUNCTIONS[feature][column]


def test_every_row_of_functions_is_run():
    assert set(FUNCTIONS) == set(ROWS) >= FUNCTIONS_READ
    assert all(tuple(row) == FUNCTION_COLUMNS for row in FUNCTIONS.values())


def test_the_readme_says_how_many_rows_there_are():
    assert f"has {len(FIELD)} rows" in PAGES[1].read_text(encoding="utf-8")


def test_every_row_is_run_or_said_to_be_read():
    assert set(FIELD) == set(PROBES) | READ
    assert not set(PROBES) & READ
    assert all(tuple(row) == COLUMNS for row in FIELD.values())


def test_every_check_of_a_cache_has_a_row():
    assert {feature for feature, _ in (*CELLS, *CACHES_READ)} == set(CACHES)
    assert not CELLS.keys() & CACHES_READ.keys()
    assert all(tuple(row) == CACHE_COLUMNS for row in CACHES.values())


@pytest.mark.parametrize("column", ARGUMENTS)
def test_peer_has_no_argument_that_the_table_does_not_know(column):
    actual, known = ARGUMENTS[column]
    assert actual() == set(known.split())


@pytest.mark.parametrize("column", NAMES)
def test_peer_has_no_cache_that_the_table_does_not_know(column):
    actual, known = NAMES[column]
    assert actual() == set(known.split())


def test_every_note_exists_and_is_used():
    body, _, notes = TEXT.partition("## Notes")
    used = {int(n) for group in re.findall(r"\((\d+(?:, \d+)*)\)", body) for n in group.split(", ")}
    numbered = [int(n) for n in re.findall(r"^(\d+)\. ", notes, re.MULTILINE)]
    assert numbered == list(range(1, len(numbered) + 1))
    assert used == set(numbered)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_short_table_is_part_of_the_long_one(page):
    """The one in docs/field.md, and the one in the README."""
    short = tables(page.read_text(encoding="utf-8").partition(MARK)[2].partition("<!-- end -->")[0])
    assert 8 <= len(short) <= 16
    for feature, row in short.items():
        assert row == {column: FIELD[feature][column] for column in row}, feature
