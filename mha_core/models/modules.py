"""The modules of a model that follow its transformer, as modules.json lists them: pooling, dense maps, normalizing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .dense import check_reads_vectors
from .files import ModelError, one_of, read_json
from .pooling import Pooling, read_pooling

_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
"""In the order in which they may follow each other."""


@dataclass(frozen=True)
class Modules:
    """What follows a transformer."""

    pooling: Pooling
    dense: tuple[str, ...]
    """The folders of Dense modules, below that of the model."""


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module in modules.json, in order; [] without this file.

    Raises ModelError for a folder outside of the model's.
    """
    path = folder / "modules.json"
    found: list[tuple[str, str]] = []
    for module in read_json(path, list) if path.exists() else []:
        given = module if isinstance(module, dict) else {}
        where = str(given.get("path", ""))
        if Path(where).is_absolute() or ".." in Path(where).parts:
            raise ModelError(f"{path}: path is {where!r}; expected a folder in that of the model")
        found.append((str(given.get("type", "")).rpartition(".")[2], where))
    return found


def read_modules(folder: Path) -> Modules:
    """Read modules.json and the settings of Pooling; without modules.json, pool by the mean.

    Raises ModelError that names a module, an order or a mode that is not supported.
    """
    path = folder / "modules.json"
    if not path.exists():
        return Modules(Pooling(), ())
    found = listed_modules(folder)
    kinds = [one_of(kind, _KINDS, path, "module type") for kind, _ in found]
    if "Pooling" not in kinds:
        raise ModelError(f"{path} has no Pooling module: its model does not return one vector for each text")
    if kinds != sorted(kinds, key=_KINDS.index) or kinds.count("Transformer") > 1 or kinds.count("Pooling") > 1:
        raise ModelError(
            f"{path} has the modules {', '.join(kinds)}; "
            "expected Transformer, Pooling, any number of Dense, and Normalize, in this order"
        )
    at = dict(reversed(found))
    if "Normalize" in at:
        config = folder / at["Normalize"] / "config.json"  # written by newer versions
        if at["Normalize"] and config.exists():
            check_reads_vectors(read_json(config), config)
    pooling = read_pooling(folder / at["Pooling"] / "config.json", normalize="Normalize" in at)
    return Modules(pooling, tuple(where for kind, where in found if kind == "Dense"))
