"""Count the instructions of a backend's calls in callgrind, and check their answers."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import callgrind
from .cases import COUNTED
from .worker import answer_file

KEPT = ("PATH", "LD_LIBRARY_PATH")
FIXED = {
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
}


class CannotCount(RuntimeError):
    """Instructions cannot be counted here, or the program that counts them failed; the message says why."""


@dataclass(frozen=True)
class Count:
    """The figures of one call."""

    instructions: int | None = None
    cycles: int | None = None
    """Estimated: instructions, plus 10 for each miss of the first level of cache and 100 for each of the last."""
    wrong: str = ""
    """Why there are no figures; the answer was wrong, or the call failed."""
    skipped: bool = False
    """True if the measured mha_core lacks the operation."""

    @property
    def failed(self) -> bool:
        """True if there should be figures, and are none."""
        return bool(self.wrong) and not self.skipped


@dataclass(frozen=True)
class Functions:
    """What the functions of one call run, without what they call."""

    native: Mapping[str, int]
    """Instructions of each compiled function. The interpreter's loop runs every Python function."""
    python: Mapping[str, int]
    """Bytecode instructions of each Python function."""


def counts(
    backend: str, cases: Sequence[str], path: Iterable[Path] = (), folder: Path | None = None, *, caches: bool = True
) -> dict[str, Count]:
    """Return the figures of each case on a backend.

    Parameters
    ----------
    path
        Folders that come before the others on Python's path, but for that of the cases: a commit, or plugins.
    folder
        An empty folder for callgrind's files; by default a temporary one.
    caches
        False to simulate no caches; then the counts of functions are exact, and the cycles are the instructions.

    Raises CannotCount.
    """
    if why := callgrind.missing():
        raise CannotCount(why)
    with nullcontext(folder) if folder else TemporaryDirectory(prefix="mha-") as made:
        workplace = Path(made)
        for run in range(max((COUNTED[case].processes for case in cases), default=0)):
            again = [case for case in cases if run < COUNTED[case].processes and (run == 0 or _outcome(workplace, case)[0])]
            if again:
                _run("count", backend, again, path, workplace, callgrind.command(caches=caches), run)
        _run("check", backend, cases, path, workplace)
        figures: dict[str, list[tuple[int, int]]] = {}
        for name, file in callgrind.dumps(workplace):
            figures.setdefault(name, []).append(callgrind.figures(file))
        return {case: _count(case, figures, workplace) for case in cases}


def functions(backend: str, cases: Sequence[str], path: Iterable[Path], folder: Path) -> dict[str, Functions]:
    """Return what each function of a call runs, in each case that can be counted; the folder is as for `counts`.

    Raises CannotCount.
    """
    checked = counts(backend, cases, path, folder, caches=False)
    right = [case for case in cases if not checked[case].wrong]
    native: dict[str, Path] = {}
    for name, file in callgrind.dumps(folder):
        native.setdefault(name, file)  # of the first group in the first process, as at any other commit
    for case in right:
        (folder / answer_file(case)).unlink()
    _run("trace", backend, right, path, folder)
    shares = {}
    for case in right:
        good, python = _outcome(folder, case)
        if not good:
            raise CannotCount(f"the Python functions of {case} on {backend} cannot be traced: {python}")
        calls = COUNTED[case].calls
        nothing, counted = (callgrind.functions(native[f"{what} of {case}"]) for what in ("nothing", "calls"))
        once = {name: round(count / calls) for name, count in (counted - nothing).items()}
        shares[case] = Functions(once, python)
    return shares


def _run(
    what: str,
    backend: str,
    cases: Sequence[str],
    path: Iterable[Path],
    folder: Path,
    prefix: Sequence[str] = (),
    run: int = 0,
) -> None:
    """Run the worker in a folder. Its name is not an argument: other letters have another hash, and another place in a dict."""
    asked = {"what": what, "backend": backend, "cases": list(cases), "libraries": libraries(backend), "run": run}
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | FIXED
    folders = [str(Path(__file__).parents[3]), *map(str, path), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    program = [sys.executable, "-P", "-m", f"{__package__}.worker", json.dumps(asked)]
    done = subprocess.run([*prefix, *program], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCount(f"the program that counts {backend} ended with status {done.returncode}: {done.stderr.strip()}")


def libraries(backend: str) -> list[str]:
    """Return the modules of the backend's array types."""
    from mha_core.shared import registry

    types = registry().backends[backend][0].types
    return sorted({name.split(":")[0].split(".")[0] for name in types if isinstance(name, str)})


def _outcome(folder: Path, case: str) -> tuple[bool | None, Any]:
    """Return what the worker wrote of a case."""
    file = folder / answer_file(case)
    return pickle.loads(file.read_bytes()) if file.exists() else (False, "its process died")


def _count(case: str, figures: Mapping[str, Sequence[tuple[int, int]]], folder: Path) -> Count:
    good, words = _outcome(folder, case)
    if not good:
        return Count(wrong=words, skipped=good is None)
    counted = COUNTED[case]
    nothing = [each for each in figures[f"nothing of {case}"] for _ in range(counted.groups)]  # one for each group of calls
    if len(nothing) != len(figures[f"calls of {case}"]):
        raise CannotCount(f"the counts of {case} are not whole: another count wrote to {folder}; end it, and count again")
    groups = zip(nothing, figures[f"calls of {case}"], strict=True)
    once = [[round((after - before) / counted.calls) for before, after in zip(*figures, strict=True)] for figures in groups]
    return Count(*map(min, zip(*once, strict=True)))
