"""The compiled plugin of a commit: built once for each version of its source, and counted as a backend of its own."""

import pytest

from mha_conformance.bench.instructions import callgrind
from mha_conformance.bench.instructions.count import Count
from tracking import compiled, counting
from tracking.compiled import NotInstalled
from tracking.project import Refused


def test_the_plugin_is_built_once_for_each_version_of_its_source(monkeypatch, tmp_path):
    trees = {"first": "a" * 40, "second": "a" * 40, "third": "b" * 40}
    monkeypatch.setattr(compiled, "BUILD", tmp_path)
    monkeypatch.setattr(compiled, "git", lambda *words: trees[words[-1].partition(":")[0]])
    built = []

    class Done:
        returncode, stdout, stderr = 0, b"", ""

    def run(words, **_):
        if "pip" in words:
            built.append(words)
            (tmp_path / "native" / "fresh").mkdir()
        return Done

    monkeypatch.setattr(compiled.subprocess, "run", run)
    assert compiled.plugin("first") == compiled.plugin("second") == tmp_path / "native" / ("a" * 40)
    assert compiled.plugin("third") == tmp_path / "native" / ("b" * 40)
    assert len(built) == 2
    Done.returncode, Done.stderr, trees["fourth"] = 1, "no compiler", "c" * 40
    with pytest.raises(NotInstalled, match="the compiled plugin of fourth cannot be built: no compiler"):
        compiled.plugin("fourth")


def test_a_commit_without_the_plugin_is_not_counted_with_it(monkeypatch):
    def refuse(*words):
        raise Refused("no such path")

    monkeypatch.setattr(compiled, "git", refuse)
    with pytest.raises(NotInstalled, match="12345678 has no backends/mha_native"):
        compiled.plugin("12345678" * 5)


def test_a_backend_with_the_plugin_is_that_backend_with_one_more_folder_on_the_path(monkeypatch, tmp_path):
    asked = {}

    def counts(backend, cases, path, folder):
        asked[folder.name] = backend, [each.name for each in path]
        return dict.fromkeys(cases, Count(1, 2))

    monkeypatch.setattr(callgrind, "missing", lambda: "")
    monkeypatch.setattr(counting, "BUILD", tmp_path)
    monkeypatch.setattr(counting, "installed", lambda commit: tmp_path)
    monkeypatch.setattr(counting, "plugin", lambda commit: tmp_path / "plugin")
    monkeypatch.setattr(counting, "counts", counts)
    table = counting.counted("a commit", ["numpy", "numpy+native"], ["a case"])
    assert table == {name: {"a case": Count(1, 2)} for name in ("numpy", "numpy+native")}
    assert asked == {"numpy": ("numpy", ["source"]), "numpy+native": ("numpy", ["source", "plugin"])}
