"""Print the shares of lines and of branches that tests ran, for each package, from coverage's report in JSON.

``python tests/support/package_coverage.py FILE``, which ``make coverage`` runs.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path, PurePath

COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")
TOP = {"backends", "text", "conformance", "mha_native"}
"""Folders around packages: the package is the folder below. mha_core is split into the packages in it."""


def package(path):
    """Return the package of a file: mha_core.algebra, mha_numpy, mha_text.models."""
    parts = [part for part in PurePath(path).parent.parts if part not in TOP]
    return ".".join(parts[:2])


def shares(report):
    """Return {package: (share of lines, share of branches)}, in alphabetical order."""
    sums = defaultdict(Counter)
    for path, file in report["files"].items():
        sums[package(path)].update({name: file["summary"][name] for name in COUNTS})
    return {name: (_share(*map(sums[name].get, COUNTS[:2])), _share(*map(sums[name].get, COUNTS[2:]))) for name in sorted(sums)}


def _share(covered, all_of_them):
    return covered / all_of_them if all_of_them else 1.0


if __name__ == "__main__":
    print(f"{'package':<32} {'lines':>7} {'branches':>9}")
    for name, (lines, branches) in shares(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).items():
        print(f"{name:<32} {lines:7.1%} {branches:9.1%}")
