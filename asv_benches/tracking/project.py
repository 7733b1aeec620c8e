"""Paths of the project, asv's configuration, and git."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from asv.config import Config
from asv.console import log
from asv.plugin_manager import plugin_manager

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
MACHINES = HERE / "machines.json"
FACTS = HERE / "facts"


class GitFailed(RuntimeError):
    """A git command failed; the message is git's."""


def configuration(results: Path | None = None) -> Config:
    """Return asv's configuration from asv.conf.json, optionally with another folder for results.

    Its paths are relative to its folder, so this changes the working directory to it, as ``asv`` itself does.
    """
    os.chdir(HERE)
    found = Config.load("asv.conf.json")
    _ready(tuple(found.plugins))
    if results is not None:
        found.results_dir = str(results)
    return found


@cache
def _ready(plugins: tuple[str, ...]) -> None:
    """Set up asv's messages and plugins, once per process."""
    log.enable(False)
    for plugin in plugins:
        plugin_manager.import_plugin(plugin)


def git(*words: str) -> str:
    """Return what a git command prints in the project's repository. Raises GitFailed."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitFailed(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def full(revision: str) -> str:
    """Return the full hash of a revision. Raises GitFailed."""
    try:
        return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitFailed as error:
        raise GitFailed(f"no commit is named {revision!r}") from error


MEASURING = ("asv_benches/benchmarks", "asv_benches/asv_environment.py", "conformance/mha_conformance")
"""The code that measures. It comes from the working tree, whichever commit is measured."""


def uncommitted(*paths: str) -> bool:
    """Whether these paths have uncommitted changes."""
    return bool(git("status", "--porcelain", "--", *paths))


def machines() -> list[str]:
    """Return the machine names that results can have."""
    return [name for name in json.loads(MACHINES.read_text(encoding="utf-8")) if name != "version"]
