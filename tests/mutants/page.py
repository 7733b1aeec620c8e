"""Write docs/mutants.md from the results of a run.

    python -m mutants.page FILE

The file is what ``python -m mutants.run --json FILE`` has written. ``make mutants`` runs both.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from .judge import ROOT
from .living import Living
from .operators import OPERATORS

PAGE = ROOT / "docs" / "mutants.md"
Record = Mapping[str, Any]

HEAD = """\
# Mutants

Does the [conformance suite](conformance.md) find wrong kernels that nobody thought of? A program makes them. It takes the
source of our own kernels and of the algebra, changes one thing, and judges the result, a *mutant*, by the suite's covering
design and by problems with one option at a time. A mutant that the suite finds is *killed*. One that *lives* computes the
same answers, or shows what the suite lacks.

`make mutants` writes this page. It judges a random sample of the mutants of each module. A mutant that lives for no known
reason is judged again: in every dtype, for as long as in a user's run, and by all sections of `mha conform --quick`.

<!-- not run: it takes half an hour -->
```console
$ cd tests
{commands}
```

Of {count} mutants, {killed} were killed: {share:.1%}.
{others}
What killed a mutant was a wrong answer or another failed check ({by_check}), an exception of its own ({by_error}), a crash or a
call that did not end ({by_crash}), or that the kernel then refused every problem ({by_refusal}).

## Operators

{operators}

Docstrings, annotations, imports, assertions and the conditions of errors are not changed. The changes are made in
`tests/mutants/operators.py`. `tests/mutants/table.py` lists the modules and the kernels that judge them.

## Modules

"Mutants" are those that the operators make; "judged" is the sample.

{modules}

## Mutants that live

Each has the line of the source, the change, and the reason why the answers stay the same, from `tests/mutants/living.toml`.

{living}"""


def markdown(results: Mapping[str, Any], living: Living) -> str:
    """Return the page."""
    records: Sequence[Record] = results["mutants"]
    left = [x for x in records if not x["killed"]]
    by = Counter(x["killed"] for x in records if x["killed"])
    explained = sum(bool(living.reason(x)) for x in left)
    found = len(records) - len(left)
    by_crash = by["crash"] + by["timeout"]
    return HEAD.format(
        commands="\n".join(f"$ {command}" for command in results["commands"]),
        count=len(records),
        killed=found,
        share=found / max(1, len(records)),
        others=_others(len(left), explained),
        by_check=by["AssertionError"],
        by_crash=by_crash,
        by_refusal=by["refuses"],
        by_error=found - by["AssertionError"] - by_crash - by["refuses"],
        operators=_operators(records),
        modules=_modules(records, results["enumerated"]),
        living="\n".join(_living(left, living)),
    )


def _others(left: int, explained: int) -> str:
    """Return a sentence on the mutants that live."""
    if left == explained:
        return f"For each of the {left} others there is a reason, given below."
    return f"Of the {left} others, {explained} have a reason, given below, and {left - explained} have none yet."


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _operators(records: Sequence[Record]) -> str:
    count = Counter(x["operator"] for x in records)
    killed = Counter(x["operator"] for x in records if x["killed"])
    rows = ((name, (operator.__doc__ or "").rstrip("."), count[name], killed[name]) for name, operator in OPERATORS.items())
    return _table(("operator", "what it does", "judged", "killed"), rows)


def _modules(records: Sequence[Record], enumerated: Mapping[str, int]) -> str:
    rows = []
    for module, group in groupby(records, key=lambda x: x["module"]):
        of_module = list(group)
        killed = sum(bool(x["killed"]) for x in of_module)
        rows.append((f"`{module}`", enumerated[module], len(of_module), killed, len(of_module) - killed))
    sums = [sum(row[at] for row in rows) for at in range(1, 5)]
    return _table(("module", "mutants", "judged", "killed", "living"), [*rows, ("all", *sums)])


def _living(left: Sequence[Record], living: Living) -> Iterable[str]:
    for module, group in groupby(left, key=lambda x: x["module"]):
        rows = (
            (f"`{x['function'] or 'the module'}`", f"`{x['text']}`", f"`{x['change']}`", living.reason(x) or "**none yet**")
            for x in group
        )
        yield f"### {module}\n\n{_table(('function', 'line', 'change', 'reason'), rows)}\n"


if __name__ == "__main__":
    PAGE.write_text(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Living.read()), encoding="utf-8")
