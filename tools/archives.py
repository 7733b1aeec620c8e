"""The distributions of a checkout, and the files of their archives."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
COMPILED, MODULES = "mha-native", {"mha_native/_native.abi3.so", "mha_native/_native.so"}  # the second for free threads
NEEDED = {
    "mha-core": [
        "mha_core/dispatch/known.toml",
        "mha_core/cli/templates/",
        "mha_numpy/certificates/",
        "mha_torch/certificates/",
    ],
}
"""Files and folders that a wheel must have, whatever the checkout has; a name may be the beginning of one."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of the checkout: its folder and its pyproject.toml."""

    folder: Path
    toml: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.toml["project"]["name"])

    @property
    def version(self) -> str:
        if stated := self.toml["project"].get("version"):
            return str(stated)
        text = (self.folder / self.toml["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
        return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])

    @property
    def packages(self) -> list[Path]:
        """The folders of its packages."""
        hatch = self.toml["tool"].get("hatch", {}).get("build", {}).get("targets", {})
        return [self.folder / name for name in (hatch or self.toml["tool"]["scikit-build"])["wheel"]["packages"]]

    @property
    def stem(self) -> str:
        """The beginning of the names of its archives."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    def files(self, *packages: Path) -> set[str]:
        """Return the files of its packages that git tracks, by their names in a wheel."""
        chosen = packages or self.packages
        listed = {path: output("git", "ls-files", path, cwd=path.parent, echo=False).splitlines() for path in chosen}
        return {name for tracked in listed.values() for name in tracked}


def distributions(root: Path = ROOT) -> list[Distribution]:
    """Return the distributions of a checkout; mha-core first."""
    pages = [root / "pyproject.toml", *(root / name / "pyproject.toml" for name in ("text", "conformance"))]
    pages += sorted(root.glob("backends/*/pyproject.toml"))
    return [Distribution(page.parent, tomllib.loads(page.read_text(encoding="utf-8"))) for page in pages]


def output(*words: str | Path, cwd: Path = ROOT, echo: bool = True) -> str:
    """Run a command without this process's PYTHONPATH; return what it prints. Raises RuntimeError with the errors."""
    if echo:
        print("  $", *(word if "\n" not in str(word) else "..." for word in words), flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=environment | {"COLUMNS": "200", "NO_COLOR": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        why = [line for line in lines if re.search("error:", line)][:5] + lines[-3:]
        raise RuntimeError("\n    ".join([f"{' '.join(map(str, words[1:]))} ends with {done.returncode}", *why]))
    return done.stdout


def built(each: Distribution) -> list[Path]:
    """Return the archives of a distribution in dist."""
    return sorted(path for path in DIST.glob(f"{each.stem}[-.]*") if path.suffix in (".gz", ".whl"))


def names(archive: Path) -> set[str]:
    """Return the files of a wheel, or of a source archive without the name of its folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as source:
        return {member.name.partition("/")[2] for member in source if member.isfile()}


def in_wheel(each: Distribution, files: set[str]) -> Iterator[str]:
    """Yield what is wrong with the files of a wheel: they are those of the packages that git tracks, and its metadata."""
    info, tracked, more = f"{each.stem}.dist-info/", each.files(), NEEDED.get(each.name, [])
    needed = {*more, f"{info}licenses/LICENSE", f"{info}METADATA", f"{info}entry_points.txt"}
    if "Typing :: Typed" in each.toml["project"].get("classifiers", []):
        needed.add(f"{each.packages[0].name}/py.typed")
    yield from (f"{name} is missing" for name in sorted(tracked - files))
    yield from (f"{name} is missing" for name in sorted(needed) if not any(path.startswith(name) for path in files))
    known = tracked | {name for name in files if name.startswith(info)}
    if each.name == COMPILED:
        known |= MODULES
        if len(files & MODULES) != 1:
            yield f"{' or '.join(sorted(MODULES))} is missing"
    yield from (f"{name} is no file of a package that git tracks" for name in sorted(files - known))


def in_source(each: Distribution, files: set[str]) -> Iterator[str]:
    """Yield what is missing in a source archive."""
    packages = {str(path.relative_to(each.folder).parent / name) for path in each.packages for name in each.files(path)}
    needed = packages | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    yield from (f"{name} is missing" for name in sorted(needed - files))
