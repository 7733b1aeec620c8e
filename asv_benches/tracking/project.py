"""Where things lie, and asv in this process: its own commands, with this project's configuration and machines."""

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
    """What git said."""


def configuration(results: Path | None = None) -> Config:
    """That of asv.conf.json, with another folder for results if told.

    Its paths are relative to its folder: the process moves there, as ``asv`` itself does.
    """
    os.chdir(HERE)
    found = Config.load("asv.conf.json")
    _ready(tuple(found.plugins))
    if results is not None:
        found.results_dir = str(results)
    return found


@cache
def _ready(plugins: tuple[str, ...]) -> None:
    """What asv does once in a process: its messages on the terminal, and its plugins."""
    log.enable(False)
    for plugin in plugins:
        plugin_manager.import_plugin(plugin)


def git(*words: str) -> str:
    """What git prints in the project's repository. Raises GitFailed."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitFailed(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def full(revision: str) -> str:
    """The hash of a commit. Raises GitFailed."""
    try:
        return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitFailed as error:
        raise GitFailed(f"no commit is named {revision!r}") from error


JUDGE = ("asv_benches/benchmarks", "asv_benches/asv_environment.py", "mha_core/bench", "mha_core/conformance")
"""What measures: it is the working tree's, whatever commit is measured."""


def uncommitted(*paths: str) -> bool:
    """Whether the working tree differs there from its commit."""
    return bool(git("status", "--porcelain", "--", *paths))


def machines() -> list[str]:
    """The names that results may have."""
    return [name for name in json.loads(MACHINES.read_text(encoding="utf-8")) if name != "version"]
