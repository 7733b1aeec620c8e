"""The environment that asv measures in: what is installed where asv runs, and over it mha-core of one commit at a time.

So a backend is measured merely by being installed; a commit costs seconds to change, not the installation of its libraries;
and neither a path nor a version is part of the environment's name, which would split histories.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from asv import util
from asv.console import log
from asv.environment import Environment

from mha_core.bench.machine import tuning_variables

# glibc would map and unmap large temporaries in one process and keep them in another
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


@cache
def _in_place() -> tuple[str, ...]:
    """What runs a command with libraries at the same addresses each time, where the system has it and allows it.

    Elsewhere they are drawn anew for each process, and speed with them: on an AMD Zen 5 NumPy's float32 exp2 took 0.65 ns per
    element in the processes whose NumPy lay 4 MB above a multiple of 8 MB, 8 of 24, and 0.19 to 0.26 in all others.
    """
    setarch = shutil.which("setarch")
    command = (setarch or "", "--addr-no-randomize")
    if setarch is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        log.warning("addresses are drawn anew for each process: times of NumPy will differ from process to process")
        return ()
    return command


class Installed(Environment):
    """``environment_type`` "installed" of asv.conf.json."""

    tool_name = "installed"

    @property
    def name(self) -> str:
        return self.tool_name

    @property
    def dir_name(self) -> str:
        return self.tool_name

    def check_presence(self) -> bool:
        return Path(self._path).is_dir()

    def _setup(self) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)

    def find_executable(self, executable: str) -> str:
        return sys.executable if executable == "python" else str(util.which(executable))

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Into a folder of the commit's own, so that going to and fro between two costs nothing."""
        folder = self._folder(commit_hash)
        self._set_commit_hash(commit_hash)
        if folder.is_dir():
            return
        self.checkout_project(repo, commit_hash)
        log.info(f"Installing {commit_hash[:8]}")
        fresh = folder.with_name(f"{folder.name}-fresh")
        shutil.rmtree(fresh, ignore_errors=True)  # of an installation that was broken off
        pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-build-isolation",
            "--compile",
        ]
        util.check_call([sys.executable, *pip, "--target", str(fresh), self._build_root], timeout=self._install_timeout)
        fresh.rename(folder)

    def run(self, args: list[str], **options: Any) -> Any:
        """With the commit's folder before all else, and libraries as they come."""
        log.debug(f"Running '{' '.join(args)}' in {self.name}")
        given = dict(options.pop("env", os.environ))
        for name in tuning_variables(given):
            del given[name]
        commit = self._global_env_vars.get("ASV_COMMIT")
        paths = [str(self._folder(commit))] if commit else []
        path = os.pathsep.join(paths + [path for path in given.get("PYTHONPATH", "").split(os.pathsep) if path])
        # asv takes what stands in PYTHONPATH alone out of the benchmark's sys.path
        environment = given | self._global_env_vars | MALLOC | {"PYTHONPATH": path, "ASV_PYTHONPATH": path}
        return util.check_output([*_in_place(), sys.executable, *args], env=environment, **options)

    def _folder(self, commit_hash: str) -> Path:
        return Path(self._path) / commit_hash
