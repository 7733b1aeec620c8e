"""The mutants that are known to live: living.toml, with the reason for each that changes no answer."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("living.toml")
FIELDS = ("module", "function", "operator", "text", "change")


class Entry(NamedTuple):
    """Mutants that the suite does not find. A field that is left out, "", matches all."""

    module: str
    reason: str
    """The reason why they change no answer beyond its bound; "" if they do, or if nobody knows."""
    function: str = ""
    operator: str = ""
    text: str = ""
    """The source of the line."""
    change: str = ""

    def matches(self, record: Mapping[str, Any]) -> bool:
        return all(getattr(self, name) in ("", record[name]) for name in FIELDS)


class Living(NamedTuple):
    """All entries of the file."""

    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, path: Path = FILE) -> Living:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = ((module, entry.pop("changes", [""]), entry) for module, of_module in tables.items() for entry in of_module)
        return cls(tuple(Entry(module, change=change, **fields) for module, changes, fields in entries for change in changes))

    def reason(self, record: Mapping[str, Any]) -> str | None:
        """Return why a mutant lives, "" if there is no reason, None if it was not known to live."""
        return next((entry.reason for entry in self.entries if entry.matches(record)), None)

    def unused(self, keys: Iterable[tuple[str, ...]]) -> list[Entry]:
        """Return the entries that match none of these mutants, given by their keys."""
        records = [dict(zip(FIELDS, key, strict=True)) for key in keys]
        return [entry for entry in self.entries if not any(entry.matches(record) for record in records)]
