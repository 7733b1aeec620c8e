"""The compiled plugin mha-native of a commit, counted as a backend of its own: ``numpy+native``, ``torch+native``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from mha_conformance.bench.instructions.count import CannotCount

from .project import BUILD, ROOT, Refused, git

NATIVE = "+native"
SOURCE = "backends/mha_native"
INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target")


class NotInstalled(CannotCount):
    """A commit cannot be installed; the message says why."""


def plugin(commit: str) -> Path:
    """Return a folder for Python's path with the compiled plugin of a commit, built once for each version of its source.

    Raises NotInstalled.
    """
    try:
        tree = git("rev-parse", "--verify", "--quiet", f"{commit}:{SOURCE}")
    except Refused as error:
        raise NotInstalled(f"{commit[:8]} has no {SOURCE}") from error
    folder = BUILD / "native" / tree
    if not folder.is_dir():
        source, fresh = (BUILD / "native" / name for name in ("source", "fresh"))
        for left_over in (source, fresh):
            shutil.rmtree(left_over, ignore_errors=True)
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", tree], capture_output=True, check=True)
        subprocess.run(["tar", "--extract", "--directory", str(source)], input=archive.stdout, check=True)
        done = subprocess.run([*INSTALL, str(fresh), str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalled(f"the compiled plugin of {commit[:8]} cannot be built: {done.stderr.strip()[-1000:]}")
        fresh.rename(folder)
    return folder
