"""The modules of a model that follow its transformer, as modules.json lists them: pooling, dense maps, normalizing."""

from __future__ import annotations

from pathlib import Path

from .dense import check_reads_vectors
from .files import ModelError, one_of, read_json
from .pooling import Pooling, read_pooling

_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
"""In the order in which they may follow each other."""


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module in modules.json, in order; [] without this file."""
    path = folder / "modules.json"
    modules: list[tuple[str, str]] = []
    for module in read_json(path, list, optional=True):
        entry = module if isinstance(module, dict) else {}
        where = str(entry.get("path", ""))
        if Path(where).is_absolute() or ".." in Path(where).parts:
            raise ModelError(f"{path}: path is {where!r}; expected a folder in that of the model")
        modules.append((str(entry.get("type", "")).rpartition(".")[2], where))
    return modules


def read_modules(folder: Path) -> tuple[Pooling, list[str]]:
    """Return the pooling, by the mean without modules.json, and the folders of Dense modules below that of the model."""
    path = folder / "modules.json"
    if not path.exists():
        return Pooling(), []
    modules = listed_modules(folder)
    kinds = [one_of(kind, _KINDS, path, "module type") for kind, _ in modules]
    if "Pooling" not in kinds:
        raise ModelError(f"{path} has no Pooling module: its model does not return one vector for each text")
    if kinds != sorted(kinds, key=_KINDS.index) or kinds.count("Transformer") > 1 or kinds.count("Pooling") > 1:
        raise ModelError(
            f"{path} has the modules {', '.join(kinds)}; "
            "expected Transformer, Pooling, any number of Dense, and Normalize, in this order"
        )
    at = dict(reversed(modules))
    if at.get("Normalize"):
        config = folder / at["Normalize"] / "config.json"  # written by newer versions
        check_reads_vectors(read_json(config, optional=True), config)
    pooling = read_pooling(folder / at["Pooling"] / "config.json", normalize="Normalize" in at)
    return pooling, [where for kind, where in modules if kind == "Dense"]
