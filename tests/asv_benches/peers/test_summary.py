"""The README's table of speed: which cases a line has, and where it is written."""

import json
import re

import pytest
import typer
from project import ROOT

import reports
from mha_conformance.bench.limits import MATRIX
from mha_conformance.bench.rounds import Ratio
from peers import summary
from peers.__main__ import main
from peers.measure import Row
from peers.report import read, record

pytestmark = pytest.mark.asv

PROCESSOR = {"model": "Some CPU", "family": 26, "caches": {"L2": "1M"}, "system": "Linux x86_64"}
RESULTS = {"date": "2026-01-31", "machine": PROCESSOR, "versions": {"commit": "0123abc"}, "limits": {MATRIX: 3e11}}


def row(case, backend, ratio, peer=None):
    peer = peer or ("sentence-transformers, batch 32" if "text" in case else "torch SDPA, with its gradients")
    return Row(case, peer, backend, None, Ratio(ratio, ratio, ratio), 1.0, 1.0)


def test_a_line_has_the_range_of_its_cases_and_a_column_for_each_backend():
    rows = [
        row("attention 8x8x512x64", "numpy", 0.5),
        row("attention 1x8x2048x64, causal", "numpy", 0.75),
        row("attention and gradients 8x8x512x64", "numpy", 1.25),
        row("attention 8x8x512x64", "torch+native", 0.3),
        row("decode 1x8x1x64, 8192 keys", "torch", 1.0),
        row("decode 1x8x1x64, 8192 keys in int8", "torch", 9.0),
        row("text encoder", "torch", 0.4),
        row("text encoder, 5120 texts", "torch", 0.9),
        row("text encoder", "torch", 0.8, "ONNX Runtime"),
        row("attention 8x8x512x64", "numpy", 0.1, "torch flex_attention"),
    ]
    lines = summary.table(rows, RESULTS).splitlines()
    assert lines[0] == "Measured on 2026-01-31, Some CPU, family 26; commit 0123abc, 300 GFLOP/s in matrix products."
    cells = {line.split(" | ")[0].removeprefix("| "): line.removesuffix(" |").split(" | ")[1:] for line in lines[4:]}
    assert cells["torch's fused attention, 128 to 8192 tokens"] == ["0.50 to 0.75", "", "", "0.30"]
    assert cells["the same with gradients"] == ["1.25", "", "", ""]
    assert cells["sentence-transformers, real sentences"] == ["", "0.40", "", ""], "one case is named whole"
    assert cells["ONNX Runtime, real sentences"] == ["", "0.80", "", ""]
    assert cells["torch's fused attention, one query and 8192 keys"] == ["", "1.00", "", ""], "keys in int8 are another case"
    assert len(cells) == 5, "a line without results is left out"


def test_the_table_of_the_readme_is_that_of_the_page_of_all_cases():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [read(file) for file in sorted((ROOT / "docs/peers").glob("*.json"))]
    assert reports.inserted(readme, summary.BEGIN, summary.END, summary.tables(pages)) == readme


def test_of_several_processors_the_slowest_and_the_fastest_have_tables():
    pages = [([row("text encoder", "numpy", rate / 1e12)], RESULTS | {"limits": {MATRIX: rate}}) for rate in (2e11, 1e11, 4e11)]
    text = summary.tables(pages)
    assert [float(cell) for cell in re.findall(r"real sentences \| (\S+)", text)] == [0.1, 0.4]
    assert text.count("below 1 is faster") == 1
    assert summary.tables(pages[:1]).count("real sentences") == 1


def test_a_table_is_written_into_a_page_that_has_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{summary.BEGIN}\n{summary.END}\nafter\n")
    rows = [row("decode 1x8x1x64, 8192 keys", "numpy", 1.5)]
    summary.write(page, [(rows, RESULTS)])
    assert summary.table(rows, RESULTS) in page.read_text()
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="the page lacks"):
        summary.write(page, [(rows, RESULTS)])


def test_the_table_is_written_from_results_and_never_left_out(tmp_path):
    page, stem = tmp_path / "page.md", tmp_path / "results"
    page.write_text(f"{summary.BEGIN}\n{summary.END}\n")
    with pytest.raises(typer.BadParameter, match="add --pages DIR, or --from FILE"):
        main(readme=page, case=["no such case"])
    rows = [row("decode 1x8x1x64, 8192 keys", "numpy", 1.5)]
    stem.with_suffix(".json").write_text(json.dumps(record(rows, {}, "make bench-peers") | RESULTS | {"limits": {}}))
    main(again=stem.with_suffix(".json"), readme=page)
    assert summary.table(rows, RESULTS | {"limits": {}}) in page.read_text() and stem.with_suffix(".md").exists()
