"""``mha report``: the page of asv's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asv.util import UserError

from mha_core import MhaError

from ..history import page, results
from ..history.repository import Refused
from ..history.results import NoHistory

__all__ = ["NoHistory", "write"]


def write(folders: Sequence[Path], output: Path) -> str:
    """Write the page of the results in these folders, and return what to say of it. Raises NoHistory and MhaError."""
    try:
        history = results.read(folders)
    except (Refused, UserError) as error:
        raise MhaError(str(error)) from error
    page.write(history, output)
    said = f"{output}: {len({commit.hash for machine in history.machines for commit in machine.commits})} commits"
    if history.unrelated:
        many = "commits that are" if history.unrelated > 1 else "commit that is"
        said = (
            f"left out: {history.unrelated} measured {many} not among the first parents of HEAD "
            f"(in a shallow clone, run git fetch --unshallow first)\n{said}"
        )
    return said
