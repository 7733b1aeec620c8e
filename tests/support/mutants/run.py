"""Judge mutants of our modules, and report which of them live.

    python -m mutants.run [MODULE ...] [--sample N] [--cap N] [--seed S] [--quick] [--suite] [-j 2] [--json FILE [--again]]

Run it in the folder tests/support. The exit status is 1 if a mutant lives that living.toml does not list. With --again, mutants
that the file has as killed, or that live for a known reason, are not judged again: to go on after Ctrl-C, or to judge by more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .judge import DTYPES, Child, Judged, judged_all, prepare, source_of, steps_of
from .living import FIELDS, Living
from .operators import Mutant, mutants
from .table import TABLE, is_judged

CAP = 16
"""Mutants of one module that are judged, at most: a sample of all."""


Record = dict[str, Any]
"""A mutant and its verdict, as in the file of results."""


def every(module: str) -> list[Mutant]:
    """Return the mutants of the functions of a module that the covering design judges."""
    return [x for x in mutants(source_of(module).read_text(encoding="utf-8"), module) if is_judged(module, x.function)]


def chosen(modules: Sequence[str], *, cap: int, sample: int | None, seed: int) -> list[Mutant]:
    """Return a random sample of the mutants of each module, or of all of these together, in the order of the table."""
    selected: list[Mutant] = []
    for module in modules:
        of_module = every(module)
        at = random.Random(f"{seed} {module}").sample(range(len(of_module)), min(cap, len(of_module)))
        selected += [of_module[i] for i in sorted(at)]
    if sample is None:
        return selected
    return [selected[i] for i in sorted(random.Random(seed).sample(range(len(selected)), min(sample, len(selected))))]


def key_of(record: Record) -> tuple[str, ...]:
    return tuple(record[name] for name in FIELDS)


def judged(selected: Sequence[Mutant], dtypes: Sequence[str], *, quick: bool, suite: bool, at_a_time: int) -> Iterator[Record]:
    """Yield the record of each mutant, as it becomes known."""
    jobs = ((x, Child(x.module, x.tree, steps_of(TABLE[x.module], dtypes), quick=quick, suite=suite)) for x in selected)
    for mutant, verdict in judged_all(jobs, at_a_time):
        yield dict(zip(FIELDS, mutant.key, strict=True)) | {"line": mutant.line} | vars(verdict)


def _check_unchanged(modules: Sequence[str], *, suite: bool) -> None:
    """Exit unless the modules as they are pass: nothing would follow from a mutant that is found otherwise."""
    kernels: list[Judged] = list(dict.fromkeys(judged for module in modules for judged in TABLE[module]))
    of_suite = list({one.backend: one for one in kernels}.values()) if suite else []
    jobs = ((one, Child("", None, [(one, "float32")], quick=True, suite=one in of_suite)) for one in kernels)
    for one, verdict in judged_all(jobs, 1):
        if verdict.killed not in ("", "refuses"):
            sys.exit(f"{' '.join(one)} fails without any change: {verdict.killed}: {verdict.message}")


def _report(records: Iterator[Record], count: int) -> list[Record]:
    """Print a line for each record, and the totals; return the records, or those until Ctrl-C was pressed."""
    living, done, began = Living.read(), list[Record](), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for record in records:
            done.append(record)
            reason = living.reason(record) or record["message"] or "no reason is known"
            fate = f"killed: {record['killed']}" if record["killed"] else f"LIVES: {reason}"
            where = f"{record['module']}:{record['line']} {record['function']}"
            print(f"[{len(done)}/{count}] {record['seconds']:5.1f} s  {where}  {record['change'][:90]}  {fate}", flush=True)
    left = [record for record in done if not record["killed"]]
    unexplained = sum(not living.reason(record) for record in left)
    print(f"{len(done)} mutants: {len(done) - len(left)} killed, {len(left)} live, {unexplained} of them without a reason")
    print(f"It took {(time.monotonic() - began) / 60:.1f} minutes.")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    modules = options.modules or list(TABLE)
    prepare({judged.backend for module in modules for judged in TABLE[module]})
    selected = chosen(modules, cap=options.cap, sample=options.sample, seed=options.seed)
    results: dict[str, Any] = {"commands": [], "mutants": []}
    living = Living.read()
    if options.again and options.json.exists():
        results = json.loads(options.json.read_text(encoding="utf-8"))
        known = {key_of(record) for record in results["mutants"] if record["killed"] or living.reason(record)}
        selected = [mutant for mutant in selected if mutant.key not in known]
    results["commands"].append(options.command)
    if options.only:
        selected = [x for x in selected if options.only in f"{x.function} {x.change}"]
    _check_unchanged(list(dict.fromkeys(mutant.module for mutant in selected)), suite=options.suite)
    records = _report(
        judged(selected, options.dtypes, quick=options.quick, suite=options.suite, at_a_time=options.at_a_time),
        len(selected),
    )
    if options.json:
        new = {key_of(record): record for record in records}
        kept = [new.pop(key_of(record), record) for record in results["mutants"]]
        results["mutants"] = sorted([*kept, *new.values()], key=lambda x: (list(TABLE).index(x["module"]), x["line"]))
        results["enumerated"] = {module: len(every(module)) for module in TABLE}
        from mha_conformance.bench import machine  # not before: mutants are made of modules that are not imported yet

        results |= {"processor": machine.processor(), "versions": machine.versions()}
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any(not record["killed"] and living.reason(record) is None for record in records) else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants.run", description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="by default all of table.py")
    parser.add_argument("--sample", type=int, help="judge so many mutants of all modules together")
    parser.add_argument("--cap", type=int, default=CAP, help="judge so many mutants of each module, at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of both samples (%(default)s)")
    parser.add_argument("--only", help="judge only mutants whose function or change contains this")
    parser.add_argument("--quick", action="store_true", help="judge by every pair of a design, and no triples")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, help="in this order (all)")
    parser.add_argument("-j", type=int, default=2, dest="at_a_time", help="mutants judged at a time (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--again", action="store_true", help="judge only mutants that live in the file, for no known reason")
    parser.add_argument("--suite", action="store_true", help="then judge by mha conform --quick, too")
    options = parser.parse_args(arguments)
    if unknown := set(options.modules) - set(TABLE):
        parser.error(f"not in table.py: {', '.join(sorted(unknown))}")
    if options.again and not options.json:
        parser.error("--again needs --json")
    options.command = f"python -m mutants.run {shlex.join(arguments)}".strip()
    return options


if __name__ == "__main__":
    sys.exit(main())
