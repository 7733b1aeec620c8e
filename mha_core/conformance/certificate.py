"""What a run found, written down: a JSON certificate for programs, and of it a Markdown table for a README.

It names all that the verdict depends on: who was judged, in which versions, on what machine and device, and by how much of
the suite. Of the host it tells the architecture and the system only.
"""

from __future__ import annotations

import json
import math
import platform
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import mha_core

from ..algebra.arrays import device_of
from ..dispatch.contract import Kernel
from ..dispatch.registry import registry
from ..layers.atomic import atomic_file
from .promises import PROMISES
from .sections import FAILED, OUTCOMES, PASSED
from .subject import CannotJudge, Subject
from .summary import error_rows, section_rows
from .tally import Tally

FORMAT = 1
"""Of the certificate: another number where a key is taken away or changes its meaning."""


@dataclass(frozen=True)
class Files:
    """Where a certificate goes."""

    json: Path
    markdown: Path


def files(folder: Path, name: str, device: str | None) -> Files:
    """``NAME[-DEVICE]`` in this folder. Raises CannotJudge where nothing could be written there."""
    if not folder.is_dir():
        raise CannotJudge(f"--report {folder} is no directory: create it first")
    stem = re.sub(r"[^\w.-]+", "_", name if device is None else f"{name}-{device}")
    found = Files(folder / f"{stem}.json", folder / f"{stem}.md")
    for path in (found.json, found.markdown):
        if path.is_dir():
            raise CannotJudge(f"--report {folder} cannot be written: {path.name} in it is a directory")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CannotJudge(f"--report {folder} cannot be written: {error.strerror}") from error
    return found


def head(subject: Subject, kernels: Iterable[Kernel], selection: str) -> dict[str, Any]:
    """All that is known before the first test: a library that a test has broken can say no more of itself.

    selection: the words that chose among the tests, or nothing where all were asked for.
    """
    record, plugin = registry().backends[subject.name]
    return {
        "format": FORMAT,
        "backend": subject.name,
        "plugin": {"name": plugin.name, "distribution": plugin.distribution or None, "version": plugin.version or None},
        "mha_core": mha_core.__version__,
        "libraries": dict(record.versions()) if record.versions else {},
        "python": platform.python_version(),
        "platform": {"machine": platform.machine(), "system": platform.system()},
        "device": str(device_of(subject.array(np.zeros(1, dtype=np.float32)))),
        "dtypes": list(subject.dtypes),
        "seed": subject.seed,
        "quick": subject.quick,
        "selection": selection,
        "kernels": [_kernel(kernel) for kernel in kernels],
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    """What is said of a kernel; which source, where it has one, so that the verdict is on no other."""
    found = {"op": kernel.op, "name": kernel.name, "from": registry().owner(kernel), "opt_in": bool(kernel.opt_in), "runs": 0}
    return found if kernel.source is None else {**found, "source": sha256(kernel.source().encode()).hexdigest()}


def certificate(head: Mapping[str, Any], tally: Tally, *, passed: bool) -> dict[str, Any]:
    """The head and what was found. A ratio that is no finite number is null: JSON has no other."""
    errors: dict[str, dict[str, float | None]] = {}
    for (operation, dtype), ratio in sorted(tally.errors.items()):
        errors.setdefault(operation, {})[dtype] = float(f"{ratio:.4g}") if math.isfinite(ratio) else None
    return {
        **head,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "result": PASSED if passed else FAILED,
        "sections": {name: _keys(counts) for name, counts in tally.sections().items()},
        "promises": {
            str(number): {"promise": PROMISES[number], **_keys(counts)} for number, counts in tally.promises().items()
        },
        "worst_error_over_bound": errors,
        "kernels": [{**kernel, "runs": tally.runs.get((kernel["op"], kernel["name"]), 0)} for kernel in head["kernels"]],
    }


def _keys(counts: Mapping[str, int]) -> dict[str, int]:
    return {outcome.replace(" ", "_"): count for outcome, count in counts.items()}


def write(found: Mapping[str, Any], to: Files) -> None:
    """Both files, each whole or not at all. Raises OSError that names the file."""
    for path, text in ((to.json, json.dumps(found, indent=2, allow_nan=False) + "\n"), (to.markdown, markdown(found))):
        with atomic_file(path) as file:
            file.write(text.encode())


def markdown(found: Mapping[str, Any]) -> str:
    """A certificate as paragraphs and tables."""
    libraries = ", ".join(f"{name} {version}" for name, version in found["libraries"].items()) or "versions unknown"
    plugin = found["plugin"]
    owner = f"{plugin['distribution']} {plugin['version']}" if plugin["distribution"] else f"plugin {plugin['name']}"
    how = [f"seed {found['seed']}", *["quick"] * found["quick"], *[f"only {found['selection']}"] * bool(found["selection"])]
    place = f"{found['platform']['system']} {found['platform']['machine']}, Python {found['python']}"
    sections = {
        name: {outcome: counts[outcome.replace(" ", "_")] for outcome in OUTCOMES} for name, counts in found["sections"].items()
    }
    errors = {
        (operation, dtype): math.inf if ratio is None else ratio
        for operation, by_dtype in found["worst_error_over_bound"].items()
        for dtype, ratio in by_dtype.items()
    }
    kernels = [
        (kernel["op"], kernel["name"] + " (opt-in)" * kernel["opt_in"], kernel["from"], str(kernel["runs"]))
        for kernel in found["kernels"]
    ]
    part = ", a part of the suite" if found["selection"] else ""
    parts = [
        f"**{found['backend']}: conformance {found['result']}{part}** ({found['date'][:10]}, mha-core {found['mha_core']})",
        f"{owner} with {libraries} on device {found['device']}; {place}; {', '.join(found['dtypes'])}; {', '.join(how)}.",
        _table([("section", *OUTCOMES), *section_rows(sections)], numbers=len(OUTCOMES)),
        *_promises(found["promises"]),
        *([_table(error_rows(errors, "worst error / bound"), numbers=len({dtype for _, dtype in errors}))] if errors else []),
        *([_table([("kernel of", "name", "from", "runs"), *kernels], numbers=1)] if kernels else []),
    ]
    return "\n\n".join(parts) + "\n"


def _promises(promises: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """The promises that failed, those that were held, and those that nothing was said of."""
    failed = [f"{number} ({counts['promise']})" for number, counts in promises.items() if counts["failed"]]
    held = [number for number, counts in promises.items() if counts["passed"] and not counts["failed"]]
    untried = [number for number, counts in promises.items() if not counts["passed"] + counts["failed"]]
    said = [("Promises failed", failed), ("Promises held", held), ("Promises not judged", untried)]
    return ["; ".join(f"{what}: {', '.join(numbers)}" for what, numbers in said if numbers) + "."]


def _table(rows: Iterable[tuple[str, ...]], *, numbers: int) -> str:
    """The first row is the heading; the last columns, so many of them, are numbers and stand on the right."""
    heading, *others = rows
    rule = (*["---"] * (len(heading) - numbers), *["---:"] * numbers)
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (heading, rule, *others))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
