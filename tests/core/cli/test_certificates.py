"""The certificates that plugins ship, as ``mha backends`` reads them, and the matrix of what computes what."""

import json
from pathlib import Path

import pytest
from processes import printed
from project import ROOT
from suite import MHA

from mha_core.cli import matrix
from mha_core.cli.certificates import certificates, summary

PLUGIN = """
from mha_core.plugin import Backend, Kernel, hookimpl

@hookimpl
def mha_backends():
    yield Backend("shipped", 1, ("shipped:Array",), lambda: __import__("shipped"))

@hookimpl
def mha_kernels():
    yield Kernel("shipped", "attention", "quick", 1, "shipped:attention", handles=frozenset({"causal", "gradient", "misspelt"}))
"""
CERTIFICATE = {
    "format": 1,
    "backend": "shipped",
    "date": "2026-01-02T03:04:05+00:00",
    "device": "cpu",
    "result": "passed",
    "quick": False,
    "selection": "",
    "libraries": {"shipped": "1.2"},
    "sections": {},
    "covering": {
        "attention by algebra": {"float32": {"problems": 7}, "float64": {"problems": 0}},
        "attention by quick": {"float32": {"problems": 5}},
        "gradient of attention by quick": {"float16": {"problems": 3}},
        "vmap of attention by quick": {"float32": {"problems": 0}},
        "dropout by algebra": {"bfloat16": {"problems": 2}},
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with an installed plugin that ships certificates for two devices, one of them later, and two broken files."""
    site = tmp_path_factory.mktemp("site")
    folder = site / "mha_shipped" / "certificates"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(PLUGIN, encoding="utf-8")
    later = CERTIFICATE | {"device": "gpu:0", "date": "2026-02-03T00:00:00+00:00", "result": "failed", "quick": True}
    for name, text in {
        "shipped.json": json.dumps(CERTIFICATE),
        "shipped-gpu.json": json.dumps(later),
        "half.json": '{"format": 1, "backend": "shipped"}',
        "torn.json": "{",
        "shipped.md": "not read",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    info = site / "mha_shipped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mha-shipped\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[mha_core.plugins]\nshipped = mha_shipped\n", encoding="utf-8")
    return site


def test_the_list_has_the_dates_and_names_files_that_are_no_certificates(site):
    said = printed([*MHA, "backends"], path=[site], COLUMNS="200")
    row = next(line for line in said.splitlines() if line.startswith("│ shipped") and "unavailable" in line)
    assert row.endswith("│ 2026-02-03 failed quick │")
    assert "│ 2026-01-02 " in said
    assert "torn.json of mha-shipped 1.0 is no certificate: Expecting property name" in said
    assert "half.json of mha-shipped 1.0 is no certificate: it lacks covering, date, device" in said


def test_one_backend_has_its_kernels_and_what_was_judged(site):
    said = printed([*MHA, "backends", "shipped"], path=[site], COLUMNS="200")
    assert "certificate for cpu: 2026-01-02, passed with shipped 1.2" in said
    assert "│ attention │ quick  │ causal, gradient │ " in said, "what does not exist is no feature"
    assert "shipped (mha-shipped 1.0): unavailable" in said and "No module named 'shipped'" in said
    assert "idle: kernel 'quick' handles 'misspelt'" in said


def test_the_matrix_is_json_and_a_table(site):
    rows = json.loads(printed([*MHA, "backends", "shipped", "--matrix", "--json"], path=[site]))
    found = {(row["device"], row["operation"], row["computed_by"]): row for row in rows}
    quick = found["cpu", "attention", "quick"]
    assert (quick["backend"], quick["from"], quick["features"]) == ("shipped", "mha-shipped 1.0", ["causal", "gradient"])
    assert (quick["judged"], quick["judged_under"]) == ({"float32": 5}, {"gradient": {"float16": 3}})
    assert found["cpu", "attention", "algebra"]["judged"] == {"float32": 7}, "no problem was computed in float64"
    assert "softcap" in found["cpu", "attention", "algebra"]["features"]
    assert found["cpu", "dropout", "algebra"]["judged"] == {"bfloat16": 2}
    assert found["gpu:0", "linear", "algebra"]["judged"] == {}
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in printed([*MHA, "backends", "shipped", "--matrix"], path=[site], COLUMNS="200").splitlines()
    ]
    at = lines.index(["attention", "quick", "quick"])
    assert lines[at + 1] == ["", "f32", "f32"]
    assert ["causal", "quick", "quick"] in lines[at + 2 : at + 4]


def test_less_than_a_whole_suite_that_passed_is_named():
    assert summary(CERTIFICATE) == "2026-01-02"
    assert summary(CERTIFICATE | {"selection": "-k linear"}) == "2026-01-02 in part"
    assert summary(CERTIFICATE | {"result": "failed", "quick": True}) == "2026-01-02 failed quick"


def test_our_certificates_are_read_and_cover_each_operation_that_they_judge():
    shipped, unreadable = certificates()
    assert not unreadable and {"numpy", "torch"} <= shipped.keys()
    rows = matrix.rows({name: shipped[name] for name in ("numpy", "torch")})
    for name in ("numpy", "torch"):
        titles = {title.rpartition(" by ") for title in shipped[name][0]["covering"] if " of " not in title}
        judged = {(row["operation"], " by ", row["computed_by"]) for row in rows if row["backend"] == name}
        assert titles <= judged


_PAGES = "import json, matrix_page; print(json.dumps({str(path): text for path, text in matrix_page.pages().items()}))"


def test_the_pages_are_of_todays_plugins_and_certificates():
    """In a process of its own, which also finds the compiled plugin."""
    for path, text in json.loads(printed(_PAGES, path=[ROOT / "docs"])).items():
        assert Path(path).read_text(encoding="utf-8") == text, f"{path} is out of date: run python docs/matrix_page.py"
