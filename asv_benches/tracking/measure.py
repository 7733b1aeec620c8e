"""One commit measured on every backend that can be used, and the facts that its results depend on."""

from __future__ import annotations

import json
from collections.abc import Sequence

from asv.commands.run import Run
from asv.results import iter_results_for_machine

from mha_core.bench.machine import processor, versions
from mha_core.cli.backends import report

from .project import FACTS, MACHINES, configuration


def usable() -> list[str]:
    """The names of the installed backends whose library and device are there."""
    return [row["name"] for row in report() if row["state"] == "ready"]


def only(backends: Sequence[str], benchmark: str = "") -> str:
    """What asv chooses these backends' benchmarks by, of those whose name holds the words."""
    return rf"{benchmark}.*\('({'|'.join(backends)})', "


def measure(commit: str, machine: str, *, benchmark: str = "", quick: bool = False) -> bool:
    """Results of asv and facts beside them; False where some benchmark failed, which a commit without its subject does not."""
    status = Run.run(
        configuration(),
        range_spec=[commit],
        bench=[only(usable(), benchmark)],
        show_stderr=True,
        quick=quick,
        machine=machine,
        _machine_file=str(MACHINES),
    )
    facts = {
        "processor": processor(),
        "versions": {name: v for name, v in versions().items() if name not in ("commit", "mha-core")},
    }
    path = FACTS / machine / f"{commit[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return not status


def measured(machine: str) -> set[str]:
    """The commits that have results on this machine."""
    results = iter_results_for_machine(configuration().results_dir, machine)
    return {result.commit_hash for result in results}
