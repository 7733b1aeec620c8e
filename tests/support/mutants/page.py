"""Judge a sample of the mutants, in an hour, and write docs/mutants.md and docs/mutants-living.md.

    PYTHONPATH=../../asv_benches python -m mutants.page [FILE]

Run it in the folder tests/support. With a FILE that ``python -m mutants.run --json FILE`` has written, it writes the pages
and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from project import ROOT

import reports

from .living import Living
from .operators import OPERATORS

PAGE, LIVING_PAGE = ROOT / "docs" / "mutants.md", ROOT / "docs" / "mutants-living.md"
Record = Mapping[str, Any]

TEXT = """\
Does the [conformance suite](conformance.md) find wrong kernels that nobody thought of? A program makes them. It takes the
source of our own kernels and of the algebra, changes one thing, and judges the result, a *mutant*, by the suite's covering
design and by problems with one option at a time. A mutant that the suite finds is *killed*. One that *lives* computes the
same answers, or shows what the suite lacks.

`python -m mutants.page` writes this page and [that of the living](mutants-living.md). It judges a random sample of the mutants
of each module. A mutant that lives for no known reason is judged again: in every dtype, by triples too, and by all sections of
`mha conform --quick`.

<!-- not run: it takes an hour -->
```console
$ cd tests/support
{commands}
```

Processor: {processor}. Versions: {versions}. They are those of the last command.

Of {count} mutants, {killed} were killed: {share:.1%}.
{others}
What killed a mutant was a wrong answer or another failed check ({by_check}), an exception of its own ({by_error}), a crash or a
call that did not end ({by_crash}), or that the kernel then refused every problem ({by_refusal}).

## Operators

{operators}

Docstrings, annotations, imports, assertions and the conditions of errors are not changed. The changes are made in
`tests/support/mutants/operators.py`. `tests/support/mutants/table.py` lists the modules and the kernels that judge them.

## Modules

"Mutants" are those that the operators make; "judged" is the sample.

{modules}

```{{toctree}}
:hidden:

mutants-living
```
"""
LIVING_TEXT = """\
[Mutants](mutants.md) that the conformance suite does not find. Each has the line of the source, the change, and the reason why
answers stay the same, from `tests/support/mutants/living.toml`; `python -m mutants.page` writes this page.

{living}"""


def markdown(results: Mapping[str, Any], living: Living) -> str:
    """Return the page of what was judged and killed."""
    records: Sequence[Record] = results["mutants"]
    left = [x for x in records if not x["killed"]]
    by = Counter(x["killed"] for x in records if x["killed"])
    explained = sum(bool(living.reason(x)) for x in left)
    killed = len(records) - len(left)
    by_crash = by["crash"] + by["timeout"]
    text = TEXT.format(
        commands="\n".join(f"$ {command}" for command in dict.fromkeys(results["commands"])),
        processor=reports.described(results["processor"]),
        versions=reports.listed(results["versions"]),
        count=len(records),
        killed=killed,
        share=killed / max(1, len(records)),
        others=_living_sentence(len(left), explained),
        by_check=by["AssertionError"],
        by_crash=by_crash,
        by_refusal=by["refuses"],
        by_error=killed - by["AssertionError"] - by_crash - by["refuses"],
        operators=_operators(records),
        modules=_modules(records, results["enumerated"]),
    )
    return reports.page("Mutants", text)


def living_markdown(results: Mapping[str, Any], living: Living) -> str:
    """Return the page of the mutants that live, each with its reason."""
    left = [x for x in results["mutants"] if not x["killed"]]
    return reports.page("Mutants that live", LIVING_TEXT.format(living="\n".join(_living(left, living))))


def _living_sentence(left: int, explained: int) -> str:
    """Return a sentence on the mutants that live."""
    if left == explained:
        return f"For each of the {left} others [there is a reason](mutants-living.md)."
    return f"Of the {left} others, {explained} have [a reason](mutants-living.md); for {left - explained} none is known yet."


def _operators(records: Sequence[Record]) -> str:
    count = Counter(x["operator"] for x in records)
    killed = Counter(x["operator"] for x in records if x["killed"])
    rows = ((name, (operator.__doc__ or "").rstrip("."), count[name], killed[name]) for name, operator in OPERATORS.items())
    return reports.table(("operator", "what it does", "judged", "killed"), rows)


def _modules(records: Sequence[Record], enumerated: Mapping[str, int]) -> str:
    rows = []
    for module, group in groupby(records, key=lambda x: x["module"]):
        of_module = list(group)
        killed = sum(bool(x["killed"]) for x in of_module)
        rows.append((f"`{module}`", enumerated[module], len(of_module), killed, len(of_module) - killed))
    sums = [sum(row[at] for row in rows) for at in range(1, 5)]
    return reports.table(("module", "mutants", "judged", "killed", "living"), [*rows, ("all", *sums)])


def _living(left: Sequence[Record], living: Living) -> Iterable[str]:
    for module, group in groupby(left, key=lambda x: x["module"]):
        rows = (
            (f"`{x['function'] or 'the module'}`", f"`{x['text']}`", f"`{x['change']}`", living.reason(x) or _unknown(x))
            for x in group
        )
        yield f"## {module.replace('.', ': ', 1)}\n\n{reports.table(('function', 'line', 'change', 'reason'), rows)}\n"


def _unknown(record: Record) -> str:
    return "**none yet**" if record["step"].startswith("suite") else "**none yet**, and not judged again yet"


def judged() -> Path:
    """Judge a sample, then those that live for no known reason by more of the suite; return the file of results."""
    file = ROOT / "build" / "mutants.json"
    file.parent.mkdir(exist_ok=True)
    for options in ("--quick --dtypes float32", "--suite --again"):
        words = [*options.split(), "--cap", "12", "--json", os.path.relpath(file)]
        done = subprocess.run([sys.executable, "-m", "mutants.run", *words], check=False)
        if done.returncode not in (0, 1):  # 1: a mutant lives for no known reason
            sys.exit(done.returncode)
    return file


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m mutants.page", description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="results of mutants.run; by default, a sample is judged")
    results = parser.parse_args().file or judged()
    for page, write in ((PAGE, markdown), (LIVING_PAGE, living_markdown)):
        page.write_text(write(json.loads(results.read_text(encoding="utf-8")), Living.read()), encoding="utf-8")
