"""asv environment: the installed packages, with mha-core replaced by one commit at a time.

Every installed backend is measured, and changing the commit takes seconds, because no library is reinstalled. The environment's
name contains no path and no version, which would split the history.
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

from mha_conformance.bench.machine import tuning_variables

# otherwise glibc maps and unmaps large temporaries in one process and keeps them in another
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}

PIP = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--compile", "--quiet", "--disable-pip-version-check")


@cache
def _in_place() -> tuple[str, ...]:
    """Return the command prefix that loads libraries at the same addresses each time; () if the system does not allow it.

    Random addresses make the speed random: on an AMD Zen 5 NumPy's float32 exp2 took 0.65 ns per element in the processes whose
    NumPy lay 4 MB above a multiple of 8 MB, 8 of 24, and 0.19 to 0.26 in all others.
    """
    setarch = shutil.which("setarch")
    command = (setarch or "", "--addr-no-randomize")
    if setarch is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        log.warning("library addresses are random in each process: times of NumPy will differ from process to process")
        return ()
    return command


class Installed(Environment):
    """The ``environment_type`` "installed" of asv.conf.json."""

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
        """Install a commit into its own folder, so that switching between commits is free."""
        folder = self.folder(commit_hash)
        self._set_commit_hash(commit_hash)
        if folder.is_dir():
            return
        self.checkout_project(repo, commit_hash)
        log.info(f"Installing {commit_hash[:8]}")
        fresh = folder.with_name(f"{folder.name}-fresh")
        shutil.rmtree(fresh, ignore_errors=True)  # left by an interrupted installation
        sources = [self._build_root, *map(str, Path(self._build_root).glob("text"))]  # mha-text, once it was a distribution
        util.check_call([sys.executable, *PIP, "--target", str(fresh), *sources], timeout=self._install_timeout)
        fresh.rename(folder)

    def run(self, args: list[str], **options: Any) -> Any:
        """Run Python with the commit's folder first on the path, and without variables that tune libraries."""
        log.debug(f"Running '{' '.join(args)}' in {self.name}")
        environment = dict(options.pop("env", os.environ))
        for name in tuning_variables(environment):
            del environment[name]
        commit = self._global_env_vars.get("ASV_COMMIT")
        paths = [str(self.folder(commit)) if commit else "", environment.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, paths))
        # asv removes entries that are only in PYTHONPATH from the benchmark's sys.path
        environment |= self._global_env_vars | MALLOC | {"PYTHONPATH": path, "ASV_PYTHONPATH": path}
        return util.check_output([*_in_place(), sys.executable, *args], env=environment, **options)

    def folder(self, commit_hash: str) -> Path:
        """Return the folder that a commit is installed in."""
        return Path(self._path) / commit_hash
