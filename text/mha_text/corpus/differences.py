"""The differences between the manifests of two runs, in words."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from .errors import shortened

_DIGITS = 12  # of a sha256
_NAMES = 3  # of files that are listed


class _File(NamedTuple):
    """A file of a manifest, relative to the folder that has all of them; an old manifest may have any values."""

    path: str
    sha256: str


Pairs = list[tuple[_File, _File]]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what differs between two manifests; the digest of a model last, since it may follow from the others."""
    for name in ("model", "options"):
        before, now = old[name], new[name]
        for key in sorted({**before, **now}, key="sha256".__eq__):
            if before.get(key) != now.get(key):
                length = _DIGITS if key == "sha256" else None
                was, is_now = (shortened(str(each.get(key))[:length]) for each in (before, now))
                yield f"{name}: {shortened(key)} was {was}, now {is_now}"
    if old["sources"] != new["sources"]:
        yield from (f"sources: {what}" for what in _of_files(_files(old["sources"]), _files(new["sources"])))
    for key in ("rows", "dim", "parts"):
        if old[key] != new[key]:
            yield f"{key} was {old[key]}, now {new[key]}"


def _files(sources: Sequence[Any]) -> list[_File]:
    records = (each if isinstance(each, dict) else {"path": each} for each in sources)
    return [_File(shortened(str(each.get("path"))), str(each.get("sha256"))) for each in records]


def _of_files(old: Sequence[_File], new: Sequence[_File]) -> Iterator[str]:
    """Yield in words what differs between the files of two manifests. A file is known by its contents, else by its path."""
    _, gone, added = _matched(old, new, lambda file: file)
    renamed, gone, added = _matched(gone, added, lambda file: file.sha256)
    changed, gone, added = _matched(gone, added, lambda file: file.path)
    if added:
        yield f"{len(added)} more file{'s' * (len(added) > 1)}, {_listed([file.path for file in added])}"
    if gone:
        yield f"{len(gone)} file{'s' * (len(gone) > 1)} fewer, without {_listed([file.path for file in gone])}"
    if changed:
        yield f"other contents in {_listed([file.path for file, _ in changed])}"
    if added or gone:  # another folder may have all files: paths that begin with it are no other names
        renamed = [pair for pair in renamed if not _ends_alike(*pair)]
    if renamed:
        yield f"the same contents under another name: {_listed([f'{was.path}, now {now.path}' for was, now in renamed])}"
    if not (added or gone or changed or renamed):
        yield "the same files, otherwise listed" if list(old) == list(new) else "the same files in another order"


def _matched(
    old: Sequence[_File], new: Sequence[_File], key: Callable[[_File], object]
) -> tuple[Pairs, list[_File], list[_File]]:
    """Return the pairs of files with equal keys, and the files of each side that have no partner."""
    waiting: defaultdict[object, deque[_File]] = defaultdict(deque)
    for file in old:
        waiting[key(file)].append(file)
    pairs, added = Pairs(), []
    for file in new:
        same = waiting[key(file)]
        if same:
            pairs.append((same.popleft(), file))
        else:
            added.append(file)
    return pairs, [file for files in waiting.values() for file in files], added


def _ends_alike(one: _File, other: _File) -> bool:
    """Return whether one path is the other's end."""
    short, long = sorted((PurePath(one.path).parts, PurePath(other.path).parts), key=len)
    return long[-len(short) :] == short


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
