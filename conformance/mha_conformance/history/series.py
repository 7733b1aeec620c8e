"""Series: a value per commit for each benchmark, case and backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .repository import Commit

COUNTED = ("instructions", "cycles")
"""Units of figures that depend on valgrind's processor, whatever the machine's."""

ANY = "any processor"


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, on all backends and cases."""

    name: str
    title: str
    """Its `pretty_name`, shown to readers."""
    unit: str


@dataclass(frozen=True)
class Series:
    """The values of one benchmark in one case on one backend."""

    benchmark: Benchmark
    case: str
    backend: str
    values: tuple[float | None, ...]
    """A value for each commit of the machine; None is a gap."""
    failed: frozenset[int]
    """Indices of the gaps where the benchmark failed."""

    @property
    def newest(self) -> int | None:
        """Index of the last commit at which the benchmark was run; None if it was never run."""
        tried = [at for at, value in enumerate(self.values) if value is not None or at in self.failed]
        return tried[-1] if tried else None


@dataclass(frozen=True)
class Machine:
    """The results of one machine."""

    name: str
    commits: tuple[Commit, ...]
    """Commits measured on this machine, oldest first."""
    series: tuple[Series, ...]
    processors: tuple[str, ...]
    """The processor at each commit, in words that tell it from others; empty if it is not known so well."""
    counters: tuple[str, ...]
    """What instructions were counted with at each commit: valgrind and the libraries, whose versions change the counts."""
    versions: Mapping[str, str]
    """Library versions at the newest commit."""
    ahead: int = 0
    """Number of commits after the newest one that changed code."""

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        """Benchmarks in order of first appearance."""
        return tuple(dict.fromkeys(each.benchmark for each in self.series))

    def processors_of(self, benchmark: Benchmark) -> tuple[str, ...]:
        """Return what the values of a benchmark depend on besides the code: those of memory depend on nothing."""
        if benchmark.unit == "bytes":
            return (ANY,) * len(self.commits)
        return self.counters if benchmark.unit in COUNTED else self.processors

    @property
    def measured_on(self) -> tuple[str, ...]:
        """What most values depend on at each commit: the processor, or what instructions were counted with."""
        return self.processors if any(each.unit not in COUNTED for each in self.benchmarks) else self.counters

    @property
    def cases(self) -> tuple[str, ...]:
        """Cases in order of first appearance."""
        return tuple(dict.fromkeys(each.case for each in self.series))


@dataclass(frozen=True)
class History:
    """All results of the branch."""

    project: str
    machines: tuple[Machine, ...]
    backends: tuple[str, ...]
    """Backends of all machines, in one order."""
    unrelated: int
    """Number of measured commits that are not on this branch."""
