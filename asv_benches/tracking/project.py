"""Where things lie, and asv in this process: its own commands, with this project's configuration and machines."""

from __future__ import annotations

import os
import subprocess
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


def configuration() -> Config:
    """That of asv.conf.json. Its paths are relative to its folder: the process moves there, as ``asv`` itself does."""
    os.chdir(HERE)
    log.enable(False)
    found = Config.load("asv.conf.json")
    for plugin in found.plugins:
        plugin_manager.import_plugin(plugin)
    return found


def git(*words: str) -> str:
    """What git prints in the project's repository. Raises GitFailed."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitFailed(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def full(revision: str) -> str:
    """The hash of a commit. Raises GitFailed."""
    return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
