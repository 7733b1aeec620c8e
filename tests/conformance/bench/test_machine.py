"""What is recorded of a machine: the processor in words, versions, and the commit with or without changes."""

import subprocess

import pytest

from mha_conformance.bench import machine


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, from which mha_core seems to be imported."""
    folder = tmp_path / "mha_core"
    folder.mkdir()
    for name in ("code.py", "page.md", "results.json"):
        (folder / name).write_text("1\n", encoding="utf-8")
    for words in ("init -q", "add .", "-c user.name=me -c user.email=me@example.org commit -q -m one"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "source", lambda: folder)
    return folder


@pytest.mark.parametrize(("file", "dirty"), [("code.py", True), ("page.md", False), ("results.json", False), ("new.md", False)])
def test_a_commit_is_dirty_if_code_differs_and_not_if_pages_do(checkout, file, dirty):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    assert head.startswith(machine.versions()["commit"])
    (checkout / file).write_text("2\n", encoding="utf-8")
    assert machine.versions()["commit"].endswith("-dirty") is dirty


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "source", lambda: tmp_path / "mha_core")
    assert "commit" not in machine.versions()


def test_a_processor_is_described_by_what_is_known():
    known = {"model": "Some CPU", "family": 26, "number": 2, "cores": 2, "flags": ["avx2"], "caches": {"L2": "1024K"}}
    assert machine.described(known) == "Some CPU, family 26 model 2, 2 cores, avx2, L2 1024K"
    assert machine.described({"model": "Some CPU", "system": "Linux x86_64"}) == "Some CPU, Linux x86_64"
