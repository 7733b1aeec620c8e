"""What git says of a repository: its commits, and those that changed code."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path


class Refused(RuntimeError):
    """A command cannot do what it was asked; the message says why."""


@dataclass(frozen=True)
class Commit:
    """A commit that may be measured."""

    hash: str
    date: str
    subject: str
    code: bool
    """True if it changed code."""
    place: int
    """Position on the branch, counted from 0 over commits that changed code, measured or not."""

    @property
    def short(self) -> str:
        """The first eight letters of the hash."""
        return self.hash[:8]


def git(*words: str, root: Path) -> str:
    """Return what a git command prints in a repository. Raises Refused, with git's message."""
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except FileNotFoundError as error:
        raise Refused("git is not installed") from error
    if done.returncode:
        raise Refused(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def changed_code(root: Path, paths: Sequence[str], head: str = "HEAD") -> list[str]:
    """Return the hashes of HEAD's first parents that changed files at these paths, from the first on."""
    options = ("--first-parent", "--no-patch", "--reverse", "--format=%H")
    return git("log", *options, head, "--", *paths, root=root).split()


def commits(root: Path, paths: Sequence[str]) -> list[Commit]:
    """Return HEAD's first parents, oldest first; if none of them changed files at these paths, all count as code.

    Raises Refused, with git's message.
    """
    listed = git("log", "--first-parent", "--reverse", "--format=%H%x1f%cs%x1f%s", "HEAD", root=root)
    lines = [line.split("\x1f", 2) for line in listed.split("\n")]
    code = set(changed_code(root, paths)) or {line[0] for line in lines}
    _, *places = accumulate((line[0] in code for line in lines), initial=-1)
    described = zip(lines, places, strict=True)
    return [Commit(hash, date, subject, hash in code, place) for (hash, date, subject), place in described]
