"""The project: its paths, asv's configuration, its commits, and the facts that were written about them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from asv.config import Config
from asv.console import log
from asv.plugin_manager import plugin_manager

from mha_conformance.history import repository
from mha_conformance.history.repository import Refused
from mha_conformance.history.results import CONFIGURATION

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
MACHINES = HERE / "machines.json"
FACTS = HERE / "facts"
BUILD = ROOT / "build" / "tracking"


def configuration(results: Path | None = None) -> Config:
    """Return asv's configuration from asv.conf.json, optionally with another folder for results.

    Its paths are relative to its folder, so this changes the working directory to it, as ``asv`` itself does.
    """
    os.chdir(HERE)
    conf = Config.load(CONFIGURATION)
    _ready(tuple(conf.plugins))
    if results is not None:
        conf.results_dir = str(results)
    return conf


@cache
def _ready(plugins: tuple[str, ...]) -> None:
    """Set up asv's messages and plugins, once per process."""
    log.enable(False)
    for plugin in plugins:
        plugin_manager.import_plugin(plugin)


def git(*words: str) -> str:
    """Return what a git command prints in this project. Raises Refused, with git's message."""
    return repository.git(*words, root=ROOT)


def full(revision: str, root: Path = ROOT) -> str:
    """Return the full hash of a revision. Raises Refused."""
    try:
        return repository.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", root=root)
    except Refused as error:
        raise Refused(f"no commit is named {revision!r}") from error


def write_facts(commit: str, machine: str, known: Mapping[str, Any]) -> None:
    """Write the facts of a commit."""
    path = FACTS / machine / f"{commit[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


MEASURING = ("asv_benches/benchmarks", "asv_benches/asv_environment.py", "conformance/mha_conformance")
"""The code that measures. It comes from the working tree, whichever commit is measured."""


def uncommitted(*paths: str) -> bool:
    """Return True if these paths have uncommitted changes."""
    return bool(git("status", "--porcelain", "--", *paths))


def machines() -> list[str]:
    """Return the machine names that results can have."""
    return [name for name in json.loads(MACHINES.read_text(encoding="utf-8")) if name != "version"]


# the commits of the history: those on the main line that changed code


def check_whole() -> None:
    """Raise Refused if this clone lacks commits."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        raise Refused("this clone is shallow and lacks most of the history; run git fetch --unshallow")


def changed_code(head: str = "HEAD") -> list[str]:
    """Return the hashes of the line's commits that changed code, from the first on."""
    return repository.changed_code(ROOT, _code_paths(), head)


def changed_between(good: str, bad: str) -> list[str]:
    """Return a commit, and those after it up to another that changed code. Raises Refused if it is no ancestor on the line."""
    check_whole()
    commits = git("rev-list", "--first-parent", "--reverse", bad).split()
    if good not in commits:
        raise Refused(f"{good[:8]} is not among the first parents of {bad[:8]}")
    after = set(commits[commits.index(good) + 1 :])
    return [good, *(commit for commit in changed_code(bad) if commit in after)]


def same_code(before: str, after: str) -> bool:
    """Return True if two commits have the same code."""
    return not git("diff", "--name-only", before, after, "--", *_code_paths())


@cache
def _code_paths() -> tuple[str, ...]:
    """Return git's patterns of the code that benchmarks run, which asv's configuration names for the report too."""
    return tuple(json.loads((HERE / CONFIGURATION).read_text(encoding="utf-8"))["code_paths"])


RECENT = 50
"""Number of the newest commits of the history that are measured first."""


def next_missing(history: Sequence[str], measured: Collection[str]) -> str | None:
    """Return the next commit to measure: the newest of the recent ones, the first, then the middle of the widest gap."""
    for commit in (*history[: -RECENT - 1 : -1], *history[:1]):
        if commit not in measured:
            return commit
    known = [at for at, commit in enumerate(history) if commit in measured]
    gaps = [(after - before, after, before) for before, after in pairwise(known) if after - before > 1]
    if not gaps:
        return None
    _, after, before = max(gaps)  # the latest of equally wide gaps
    return history[(before + after) // 2]


def keep(machine: str, subject: str) -> None:
    """Commit the results of a machine, if there are new ones, and nothing else. Raises Refused."""
    folders = [f"asv_benches/{folder}/{machine}" for folder in ("results", "facts")]
    paths = [*folders, "asv_benches/results/benchmarks.json"]
    if not uncommitted(*paths):
        return
    git("add", "--", *paths)
    git("commit", "--quiet", "--message", subject, "--", *paths)
