"""The commits of the history: those on the main line that changed code."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from .project import git

CODE = ("mha_core", "backends", "text")
UNMEASURED = ("mha_core/bench", "mha_core/conformance", "mha_core/cli", "text/mha_text/cli")
"""Code that no benchmark runs."""


class ShallowClone(RuntimeError):
    """The clone lacks most of the history."""


def line() -> list[str]:
    """Return hashes from the first commit to HEAD, first parents only. Raises ShallowClone."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        raise ShallowClone("this clone is shallow and lacks most of the history; run git fetch --unshallow")
    return git("rev-list", "--first-parent", "--reverse", "HEAD").split()


def changed_code() -> list[str]:
    """Return the hashes of the line's commits that changed code."""
    paths = [*CODE, *(f":(exclude){path}" for path in UNMEASURED)]
    touched = git("log", "--first-parent", "--diff-merges=first-parent", "--format=%H", "HEAD", "--", *paths).split()
    return [commit for commit in line() if commit in set(touched)]


def next_missing(history: Sequence[str], measured: Collection[str]) -> str | None:
    """Return the next commit to measure: the last, the first, then the middle of the widest gap; None if none is missing."""
    known = [at for at, commit in enumerate(history) if commit in measured]
    for at in (len(history) - 1, 0):
        if history and at not in known:
            return history[at]
    gaps = [(after - before, after, before) for before, after in pairwise(known) if after - before > 1]
    if not gaps:
        return None
    _, after, before = max(gaps)  # the latest of equally wide gaps
    return history[(before + after) // 2]


def keep(commit: str, machine: str) -> None:
    """Commit the results of one measured commit, and nothing else. Raises GitFailed."""
    paths = [f"asv_benches/{folder}/{machine}" for folder in ("results", "facts")] + ["asv_benches/results/benchmarks.json"]
    git("add", "--", *paths)
    git("commit", "--quiet", "--message", f"Results of {commit[:8]} on {machine}", "--", *paths)
