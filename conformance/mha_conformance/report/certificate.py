"""The certificate of a run: JSON for programs, and Markdown tables and a badge for a README.

It names everything that the verdict depends on: the backend, its versions, the commit of a checkout, processor and device, and
the part of the suite that was run. It has no host name and no path.
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import mha_core
from mha_core.plugin import Kernel
from mha_core.shared import atomic_file, device_name, opt_in_of, registry

from ..backend import BackendUnderTest, CannotJudge
from ..bench.machine import described, processor, versions
from .badge import badge
from .counts import ERROR, Counts
from .evidence import COVERED, ERRORS, REFUSALS, RUNS, nested
from .promises import PROMISES
from .sections import FAILED, OUTCOMES, PASSED
from .summary import error_rows, section_rows

FORMAT = 1
"""Version of the certificate's format; increased when a key is removed or changes its meaning."""


@dataclass(frozen=True)
class Files:
    """Paths of the certificate."""

    json: Path
    markdown: Path
    badge: Path


def files(folder: Path, name: str, device: str | None) -> Files:
    """Return the paths ``NAME[-DEVICE].json``, ``.md`` and ``.svg`` in this folder, which is made if it does not exist.

    Raises CannotJudge if they cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CannotJudge(f"--report {folder} is not a directory")
    stem = re.sub(r"[^\w.-]+", "_", name if device is None else f"{name}-{device}")
    files = Files(*(folder / f"{stem}.{kind}" for kind in ("json", "md", "svg")))
    for path in (files.json, files.markdown, files.badge):
        if path.is_dir():
            raise CannotJudge(f"--report {folder} cannot be written: {path.name} in it is a directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CannotJudge(f"--report {folder} cannot be written: {error.strerror}") from error
    return files


def head(backend: BackendUnderTest, kernels: Iterable[Kernel], selection: str) -> dict[str, Any]:
    """Return the part that is known before the first test, since a library that a test breaks may no longer work.

    selection: the options that select tests; empty if the whole suite is run.
    """
    record, plugin = registry().backends[backend.name]
    return {
        "format": FORMAT,
        "backend": backend.name,
        "plugin": {"name": plugin.name, "distribution": plugin.distribution or None, "version": plugin.version or None},
        "mha_core": mha_core.__version__,
        "libraries": dict(record.versions()) if record.versions else _library(backend.name),
        "python": platform.python_version(),
        "platform": {"machine": platform.machine(), "system": platform.system(), "processor": described(processor())},
        "commit": versions().get("commit"),
        "device": device_name(backend.array(np.zeros(1, dtype=np.float32))),
        "dtypes": list(backend.dtypes),
        "seed": backend.seed,
        "quick": backend.quick,
        "selection": selection,
        "kernels": [_kernel(kernel) for kernel in kernels],
    }


def _library(name: str) -> dict[str, str]:
    """Return the version of the library that a backend is named after, if there is one of this name."""
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _kernel(kernel: Kernel) -> dict[str, Any]:
    """Describe a kernel, with the hash of its source if it has one: the verdict holds for that source only."""
    record = {
        "op": kernel.op,
        "name": kernel.name,
        "from": registry().owner(kernel),
        "opt_in": bool(opt_in_of(kernel)),
        "runs": 0,
    }
    return record if kernel.source is None else {**record, "source": sha256(kernel.source().encode()).hexdigest()}


def certificate(head: Mapping[str, Any], counts: Counts, *, passed: bool) -> dict[str, Any]:
    """Return the head and the results. A ratio that is not finite is null, since JSON has no infinity."""
    runs = counts.records[RUNS]
    return {
        **head,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "result": PASSED if passed else FAILED,
        "sections": {name: _keys(counts) for name, counts in counts.sections().items()},
        "promises": {
            str(number): {"promise": PROMISES[number], **_keys(counts)} for number, counts in counts.promises().items()
        },
        "worst_error_over_bound": nested(
            counts.records[ERRORS], lambda ratio: float(f"{ratio:.4g}") if math.isfinite(ratio) else None
        ),
        "covering": nested(counts.records[COVERED], dict),
        "kernels": [
            {**kernel, "runs": runs.get(key, 0), "refusals": counts.records[REFUSALS].get(key, [])}
            for kernel, key in ((each, (each["op"], each["name"])) for each in head["kernels"])
        ],
    }


def _keys(counts: Mapping[str, int]) -> dict[str, int]:
    return {outcome.replace(" ", "_"): count for outcome, count in counts.items()}


def write(record: Mapping[str, Any], to: Files) -> None:
    """Write the files, each completely or not at all. Raises OSError, naming the file."""
    texts = (json.dumps(record, indent=2, allow_nan=False) + "\n", markdown(record), badge(record))
    for path, text in zip((to.json, to.markdown, to.badge), texts, strict=True):
        with atomic_file(path) as file:
            file.write(text.encode())


def markdown(record: Mapping[str, Any]) -> str:
    """Return a certificate as Markdown paragraphs and tables."""
    libraries = ", ".join(f"{name} {version}" for name, version in record["libraries"].items()) or "versions unknown"
    plugin = record["plugin"]
    owner = f"{plugin['distribution']} {plugin['version']}" if plugin["distribution"] else f"plugin {plugin['name']}"
    how = [f"seed {record['seed']}", *["quick"] * record["quick"], *[f"only {record['selection']}"] * bool(record["selection"])]
    commit = f", commit {record['commit']}" if record["commit"] else ""
    place = f"{record['platform']['processor']}, Python {record['python']}{commit}"
    sections = {
        name: {outcome: counts[outcome.replace(" ", "_")] for outcome in OUTCOMES}
        for name, counts in record["sections"].items()
    }
    errors = error_rows(record["worst_error_over_bound"], "worst error / bound")
    kernels = [
        (kernel["op"], kernel["name"] + " (opt-in)" * kernel["opt_in"], kernel["from"], str(kernel["runs"]))
        for kernel in record["kernels"]
    ]
    covered = [
        (kernel, dtype, *(str(one[name]) for name in ("problems", "floor")), *_shares(one))
        for kernel, by_dtype in record["covering"].items()
        for dtype, one in by_dtype.items()
    ]
    on = f" on device {record['device']}" if record["device"] else ""
    part = ", a part of the suite" if record["selection"] else ""
    paragraphs = [
        f"**{record['backend']}: conformance {record['result']}{part}** ({record['date'][:10]}, mha-core {record['mha_core']})",
        f"{owner} with {libraries}{on}; {place}; {', '.join(record['dtypes'])}; {', '.join(how)}.",
        _table([("section", *OUTCOMES), *section_rows(sections)], numbers=len(OUTCOMES)),
        *_promises(record["promises"]),
        *([_table(errors, numbers=len(errors[0]) - 1)] if len(errors) > 1 else []),
        *([_table([("kernel of", "name", "from", "runs"), *kernels], numbers=1)] if kernels else []),
        *(
            [_table([("covering design of", "dtype", "problems", "floor", "pairs", "triples"), *covered], numbers=4)]
            if covered
            else []
        ),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _promises(promises: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """List the promises that failed, those that held, and those that no test judged, or not all because of other errors."""
    failed = [f"{number} ({counts['promise']})" for number, counts in promises.items() if counts["failed"]]
    judged = {number: counts for number, counts in promises.items() if not counts["failed"]}
    held = [number for number, counts in judged.items() if counts["passed"] and not counts[ERROR]]
    untried = [number for number in judged if number not in held]
    said = [("Promises failed", failed), ("Promises held", held), ("Promises not judged", untried)]
    return ["; ".join(f"{what}: {', '.join(numbers)}" for what, numbers in said if numbers) + "."]


def _shares(counts: Mapping[str, int]) -> Iterable[str]:
    return (f"{counts[name]} of {counts[name + '_of']}" for name in ("pairs", "triples"))


def _table(rows: Iterable[tuple[str, ...]], *, numbers: int) -> str:
    """Return a table whose first row is the heading and whose last ``numbers`` columns are aligned right."""
    heading, *others = rows
    rule = (*["---"] * (len(heading) - numbers), *["---:"] * numbers)
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (heading, rule, *others))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
