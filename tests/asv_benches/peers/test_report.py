"""The output of the benchmark against other libraries: a table, a page, and a picture."""

import io
import json
import platform
import sys
from dataclasses import replace

import numpy as np
import pytest
from project import ROOT
from rich.console import Console

from mha_conformance.bench import machine
from mha_conformance.bench.limits import COPY, MATRIX
from mha_conformance.bench.rounds import Ratio
from mha_conformance.bench.timing import duration
from peers import chart
from peers.measure import Row
from peers.report import HEADING, cells, draw, markdown, read, record, table

pytestmark = pytest.mark.asv

ROWS = [
    Row("decode", "SDPA", "numpy", 1.1, Ratio(1.104, 1.0, 1.25), 1.5e-3, 1.4e-3, 0.61, COPY, 21),
    Row("layer", "fast path", "torch", 1.0, Ratio(1.231, 1.2, 1.3), 0.0451, 0.0361, 0.7, MATRIX, 21),
    Row("layer", "fast path", "other", None, Ratio(2.0, 2.0, 2.0), 2.0, 1.0, None, None, 5),
    Row("layer", "fast path", "bad", None, wrong="out[0] is nan; expected 1"),
]
RATES = {MATRIX: 295.4e9, COPY: 34.2e9}


def test_a_goal_is_met_or_missed_to_two_decimals():
    assert [row.verdict for row in ROWS] == ["met", "missed by 23%", "", "wrong"]
    assert replace(ROWS[0], ratio=Ratio(1.106, 1, 2)).verdict == "missed by 1%"


def test_a_row_has_a_cell_for_each_heading():
    assert [len(cells(row)) for row in ROWS] == [len(HEADING)] * 4
    assert cells(ROWS[0])[3:] == ("1.10", "1.10", "1.00 to 1.25", "met", "1.5 ms", "1.4 ms", "61% (copy)")
    assert cells(ROWS[1])[3:] == ("1.00", "1.23", "1.20 to 1.30", "missed by 23%", "45.1 ms", "36.1 ms", "70%")
    assert cells(ROWS[3])[3:] == ("", "", "", "wrong", "", "", "")


def test_durations_have_their_unit():
    assert [duration(seconds) for seconds in (1.234, 0.0456, 7.5e-6)] == ["1.23 s", "45.6 ms", "7.5 us"]


def test_the_table_contains_every_cell():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(ROWS))
    text = console.export_text()
    for row in ROWS:
        assert all(word in text for word in cells(row))


def test_the_page_has_the_smallest_cosines_of_vectors():
    rows = [replace(ROWS[0], case="texts", cosine=0.9987654, peer_cosine=0.9801), ROWS[1]]
    text = markdown(rows, record(rows, RATES, "make bench-peers"), "peers.svg").partition("## Smallest cosine")[2]
    assert "| texts | SDPA | 0.98010 |\n| texts | numpy | 0.99877 |" in text and "layer" not in text
    assert "Smallest cosine" not in markdown(ROWS, record(ROWS, RATES, "make bench-peers"), "peers.svg")


def test_the_report_contains_the_results_without_host_and_path(tmp_path):
    draw(tmp_path / "folder" / "peers", ROWS, record(ROWS, RATES, "make bench-peers"))
    text = (tmp_path / "folder" / "peers.md").read_text(encoding="utf-8")
    kept = (tmp_path / "folder" / "peers.json").read_text(encoding="utf-8")
    found = json.loads(kept)
    assert text == markdown(ROWS, found, "peers.svg")
    assert "| decode,<br>SDPA | 1.10 (1.10) |  |  |  |" in text.splitlines()
    assert "| layer,<br>fast path |  | **1.23 (1.00)** | 2.00 | wrong |" in text.splitlines()
    assert "| decode | numpy | 1.00 to 1.25 | 1.5 ms | 1.4 ms | 61% (copy) |" in text.splitlines()
    assert "layer, bad: out[0] is nan; expected 1" in text
    assert "295 GFLOP/s" in text and "34 GB/s" in text and "`make bench-peers`" in text
    assert found["rows"][0]["ratio"] == {"median": 1.104, "low": 1.0, "high": 1.25}
    assert found["machine"]["cores"] >= 1 and found["versions"]["numpy"] == np.__version__
    assert record(ROWS, RATES, "make bench-peers") == found
    for told in (text, kept):
        assert platform.node() not in told and str(ROOT) not in told and sys.prefix not in told


def test_the_picture_has_each_ratio_with_its_goal_and_the_limit_and_shows_misses():
    texts = [text.get_text() for text in chart.drawn(ROWS).axes[0].texts]
    assert texts == ["decode  ·  SDPA", "1.10", "layer  ·  fast path", "1.23", "2.00"]
    marks = {}
    for line in chart.drawn(ROWS).axes[0].lines:
        marks.setdefault(line.get_marker(), []).append((line.get_color(), float(line.get_xdata()[0])))
    assert marks["|"] == [(chart.INK, 1.1), (chart.INK, 1.0)]
    assert marks["d"] == [(chart.QUIET, pytest.approx(1.104 * 0.61)), (chart.QUIET, pytest.approx(1.231 * 0.7))]
    far = replace(ROWS[0], ratio=Ratio(0.1, 0.1, 0.1), reached=0.01)
    assert "<" in [line.get_marker() for line in chart.drawn([far]).axes[0].lines]  # the limit is outside
    assert marks["o"] == [(chart.HIT, 1.104)] and marks["s"] == [(chart.MISS, 1.231)]


def test_the_picture_suits_light_and_dark_pages_and_does_not_change_by_itself():
    text = chart.svg(ROWS)
    assert text == chart.svg(ROWS)
    assert not any(colour in text for colour in chart.STYLE) and "var(--miss)" in text
    for name, light, dark in chart.STYLE.values():
        assert f"--{name}: {light}" in text and f"--{name}: {dark}" in text.partition("prefers-color-scheme: dark")[2]
    assert ">1.23</text>" in text  # letters, not outlines


def test_rows_are_read_from_the_results_of_a_page(tmp_path):
    draw(tmp_path / "peers", ROWS, record(ROWS, RATES, "make bench-peers"))
    assert read(tmp_path / "peers.json")[0] == ROWS
    (tmp_path / "old.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match=r"old.json is not a report of format 1"):
        read(tmp_path / "old.json")


@pytest.mark.parametrize("file", sorted((ROOT / "docs/peers").glob("*.json")), ids=lambda file: file.stem)
def test_a_page_in_the_documentation_is_that_of_its_results(file, tmp_path):
    rows, results = read(file)
    assert file.stem == machine.stem(results["machine"])
    draw(tmp_path / file.stem, rows, results)
    for kind in (".md", ".svg"):
        written = (tmp_path / file.name).with_suffix(kind).read_text(encoding="utf-8")
        assert written == file.with_suffix(kind).read_text(encoding="utf-8")


def test_the_legend_names_the_backends_that_were_measured():
    (legend,) = chart.drawn(ROWS).legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == [*dict.fromkeys(row.backend for row in ROWS if row.ratio is not None), "goal missed", "goal", "limit"]
