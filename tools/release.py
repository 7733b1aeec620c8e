"""Check that the distributions are ready for a release, and build them in dist. Nothing is uploaded.

    python tools/release.py                                      # every step
    python tools/release.py --step versions --step changelog     # only these
    python tools/release.py --step wheels --step installs --python python3.11 --python python3.14t

Each step prints what it checks. The last lines say what is done, what failed, and what is left to a person. The exit code is 1
if a step failed.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path

from archives import COMPILED, DIST, ROOT, WORK, built, distributions, in_source, in_wheel, names, output
from proofs import free_threaded, installs, version_of

COMPILERS = ["wheel", "ziglang", "scikit-build-core", "cmake", "ninja", "jaxlib"]
"""What compiles wheels of other systems."""
MOST = 10
"""Faults of a step that the last lines repeat."""
CHECKS = {
    "tree": "everything is committed",
    "versions": "every distribution, what it requires of the others, and CITATION.cff state one version",
    "changelog": "CHANGELOG.md begins with this version and its date, and nothing is unreleased",
    "certificates": "every backend ships a certificate of the whole suite, passed at this version",
    "commands": "known.toml installs distributions by their names",
    "build": "each distribution becomes a source archive, and that a wheel",
    "wheels": "the compiled wheels of every system are built, and need nothing that a system may lack",
    "twine": "an index will accept metadata and descriptions",
    "contents": "the archives have the tracked files, data, types and licences, and nothing else",
    "installs": "the wheels work in empty environments, where the project's own come from dist alone",
}
"""What each step checks."""
PERSON = [
    "Run the wheels for macOS and AArch64 on such machines: here they are only inspected.",
    "Certify the backends that need a GPU: make gpu-check.",
    "Tag the commit with the version, upload dist, and install from the index in an empty environment.",
]


def tree(root: Path = ROOT) -> Iterator[str]:
    """Yield each file that differs from the commit: what is built must be what is tagged."""
    yield from (f"not committed: {line}" for line in output("git", "status", "--porcelain", cwd=root).splitlines())


def versions(root: Path = ROOT) -> Iterator[str]:
    """Yield each place that states another version than mha-core: distributions, what they require, and CITATION.cff."""
    first, *others = distributions(root)
    print(f"  {first.name} {first.version}")
    for other in others:
        required = re.findall(r"mha-(?:core|text)(?:\[\w+\])?==([\w.]+)", " ".join(other.toml["project"]["dependencies"]))
        for what, stated in [("is", other.version), *(("requires", version) for version in required)]:
            if stated != first.version:
                yield f"{other.name} {what} {stated}; {first.name} is {first.version}"
    if f"\nversion: {first.version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        yield f"CITATION.cff does not state version {first.version}"


def changelog(root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with the headings of CHANGELOG.md: the first is this version and a date, and none is unreleased."""
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    version = distributions(root)[0].version
    if not headings or not re.fullmatch(re.escape(version) + r", \d{4}-\d\d-\d\d", headings[0]):
        yield f"the first heading is {' '.join(headings[:1])!r}; expected '{version}, ' and a date, such as 2026-01-31"
    yield from (f"{title!r} is not released" for title in headings[1:] if re.search(r"not released|unreleased", title, re.I))


def certificates(root: Path = ROOT) -> Iterator[str]:
    """Yield each backend that ships no certificate of the whole suite, passed at this version."""
    for each in distributions(root):
        plugins = set(each.toml["project"].get("entry-points", {}).get("mha_core.plugins", {}).values())
        for package in (package for package in each.packages if package.name in plugins):
            if not any(re.search(r"\bBackend\(", path.read_text(encoding="utf-8")) for path in package.glob("*.py")):
                continue  # a plugin of kernels or ranks
            shipped = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(package.glob("certificates/*.json"))]
            whole = [one for one in shipped if one["result"] == "passed" and not one["quick"] and not one["selection"]]
            if not any(one["mha_core"] == each.version for one in whole):
                kinds = [f"one of {one['mha_core']}, {one['result']}{', quick' * one['quick']}" for one in shipped]
                yield f"{package.name} ships {'; '.join(kinds) or 'no certificate'}; expected one of {each.version}, passed"


def commands(root: Path = ROOT) -> Iterator[str]:
    """Yield each command of known.toml that installs from a checkout: after a release, messages must name distributions."""
    for name, entry in tomllib.loads((root / "mha_core/dispatch/known.toml").read_text(encoding="utf-8")).items():
        extra = re.search(r"\[\w+\]", entry["install"])
        command = f"pip install '{name}{extra[0]}'" if extra else f"pip install {name}"
        if entry["install"] != command:
            yield f"known.toml: change {entry['install']!r} to {command!r}"


@cache
def tools(*names: str, python: str = sys.executable) -> Path:
    """Return the Python of an environment with these tools, of the same version as another Python."""
    place = WORK / f"{names[0]}-{version_of(python)}"
    output(python, "-m", "venv", place)
    output(place / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *names)
    return place / "bin" / "python"


def build() -> Iterator[str]:
    """Build each source archive, and a wheel from it alone. The compiled one's wheel is only a trial: see wheels."""
    for folder in (DIST, WORK / "trial"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for each in distributions():
        to, begin = (WORK / "trial" if each.name == COMPILED else DIST), time.monotonic()
        try:
            output(tools("build"), "-m", "build", "--outdir", to, each.folder)
        except RuntimeError as error:
            yield f"{each.name}: {error}"
            continue
        print(f"    {time.monotonic() - begin:.0f} s")
        if to != DIST:
            shutil.copy(to / f"{each.stem}.tar.gz", DIST)


def wheels(pythons: list[str]) -> Iterator[str]:
    """Build and inspect the compiled wheels of each system: for the stable interface, and for each Python with free threads."""
    program = ROOT / "backends" / "mha_native" / "tools" / "wheels.py"
    targets = runpy.run_path(str(program))["TARGETS"]
    for python, target in product([sys.executable, *filter(free_threaded, pythons)], targets):
        begin, folder = time.monotonic(), WORK / "compiled" / target
        shutil.rmtree(folder, ignore_errors=True)
        try:
            said = output(tools(*COMPILERS, python=python), program, folder, target)
        except RuntimeError as error:
            yield f"{target}, {python}: {error}"
            continue
        print(f"    {said.strip()}, {time.monotonic() - begin:.0f} s")
        for path in folder.glob("*.whl"):
            shutil.copy(path, DIST)


def twine() -> Iterator[str]:
    """Check the metadata and the description of everything in dist, as an index will."""
    archives = [path for each in distributions() for path in built(each)]
    try:
        print(output(tools("twine"), "-m", "twine", "check", "--strict", *archives))
    except RuntimeError as error:
        yield str(error)


def contents() -> Iterator[str]:
    """Yield what a wheel or a source archive in dist lacks, or has too much."""
    for each in distributions():
        archives = built(each)
        if {path.suffix for path in archives} != {".gz", ".whl"}:
            yield f"{each.name}: dist has {[path.name for path in archives]}; expected a source archive and a wheel"
        for path in archives:
            files = names(path)
            print(f"  {path.name}: {path.stat().st_size / 1000:.0f} kB, {len(files)} files")
            yield from (f"{path.name}: {fault}" for fault in (in_wheel if path.suffix == ".whl" else in_source)(each, files))


STEPS: dict[str, Callable[..., Iterable[str]]] = {
    step.__name__: step
    for step in (tree, versions, changelog, certificates, commands, build, wheels, twine, contents, installs)
}
"""All steps, by name, in order: each yields what is wrong. Two take the Pythons that are asked for."""


def main() -> int:
    """Run the steps; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="append", choices=list(STEPS), help="only this step; repeatable")
    parser.add_argument(
        "--python",
        action="append",
        help="install into an environment of this Python, and compile for it if it has no GIL; repeatable",
    )
    asked = parser.parse_args()
    pythons = asked.python or [sys.executable]
    steps = STEPS | {step.__name__: partial(step, pythons) for step in (wheels, installs)}
    lines = []
    for name in asked.step or steps:
        print(f"{name}: {CHECKS[name]}", flush=True)
        begin = time.monotonic()
        faults = list(steps[name]())
        print(*(f"  {fault}" for fault in faults), sep="\n", end="\n" * bool(faults), flush=True)
        lines.append(f"{'failed' if faults else 'done'}: {name}, {time.monotonic() - begin:.0f} s")
        lines += [f"  {fault.partition(chr(10))[0]}" for fault in faults[:MOST]]
        lines += [f"  and {len(faults) - MOST} more, above"] * (len(faults) > MOST)
    print("", *lines, *(f"to be done by a person: {line}" for line in PERSON), sep="\n")
    return int(any(line.startswith("failed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
