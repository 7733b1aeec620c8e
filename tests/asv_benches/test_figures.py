"""Pages of figures: what measures each anew, and that none is old."""

import os
import re
from pathlib import Path

import pytest
from project import ROOT

import figures
from tracking.project import changed_code

OLD = 60
"""Greatest number of commits that changed code since a page was measured."""
BACKENDS = ["numpy", "torch", "jax", "mlx", "dask", "ndonnx"]
FIGURES = [f"docs/{name}.md" for name in ("ranks", "corpora-measured", "mutants")]
PEERS = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/peers/*.md"))]
"""Pages of one run on each processor: those of processors that are not at hand may be older."""
CERTIFICATES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("backends/**/certificates/*.md"))
"""Pages that state the commit of their figures."""


@pytest.mark.parametrize("page", [*FIGURES, *CERTIFICATES])
def test_a_page_of_figures_states_its_commit_which_is_not_old(page):
    """``make pages`` measures all anew."""
    (age,) = ages(page)
    assert age <= OLD


def test_the_newest_page_of_peers_is_not_old_and_readme_has_it():
    newest = {page: min(ages(page)) for page in PEERS}
    assert min(newest.values()) <= OLD
    assert set(ages("README.md")) <= {age for page in PEERS[1:] for age in ages(page)}


def ages(page):
    """The number of commits that changed code since each commit that a page states."""
    stated = set(re.findall(r"commit ([0-9a-f]{7,}(?:-dirty)?)\b", (ROOT / page).read_text(encoding="utf-8")))
    histories = {commit: changed_code(commit) for commit in stated if not commit.endswith("-dirty")}
    assert stated and stated == set(histories), "it was measured with changes that no commit has"
    for commit, history in histories.items():
        assert changed_code()[: len(history)] == history, f"{commit} is not on this branch"
    return [len(changed_code()) - len(history) for history in histories.values()]


def test_every_step_writes_into_the_pages_that_are_committed():
    steps = figures.steps(BACKENDS)
    words = {name: " ".join(command) for name, command in steps.items()}
    assert [name for name in steps if name.startswith("certificate")] == [f"certificate of {name}" for name in BACKENDS]
    assert f"--report {ROOT / 'backends/mha_numpy/certificates'}" in words["certificate of numpy"]
    assert f"--report {ROOT / 'backends/mha_jax/mha_jax/certificates'} --quick --part" in words["certificate of jax"]
    assert f"--readme {ROOT / 'README.md'}" in words["peers"]
    assert f"--pages {ROOT / 'docs/peers'} " in words["peers"]
    for name in ("ranks", "corpora"):
        stem = re.search(r"--report (\S+)", words[name])[1]
        assert Path(f"{stem}.md").parent == ROOT / "docs" and Path(f"{stem}.md").exists()


def test_steps_run_in_order_and_a_failure_is_named_at_the_end(monkeypatch, capfd):
    run = {"first": ["false"], "second": ["echo", "second ran"], "other": ["echo", "other ran"]}
    monkeypatch.setattr(figures, "ready", lambda environment: ["numpy"])
    monkeypatch.setattr(figures, "steps", lambda backends: run)
    with pytest.raises(figures.typer.Exit) as ended:
        figures.main(step=["first", "second"])
    out, log = capfd.readouterr()
    assert ended.value.exit_code == 1
    assert out == "second ran\n"
    assert "first: failed after 0.0 minutes" in log and log.rstrip().endswith("failed: first")


def test_the_backends_of_this_repository_that_can_compute_are_certified():
    ready = figures.ready(os.environ | {"PYTHONPATH": os.pathsep.join(map(str, figures.PATH))})
    assert {"numpy", "torch", "jax", "mlx", "dask", "ndonnx"} <= set(ready)
    assert not {"strict", "frozen_v1"} & set(ready)
