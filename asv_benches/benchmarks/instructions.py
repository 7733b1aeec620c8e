"""Instructions of a call, counted by callgrind: figures that neither a busy machine nor another processor changes.

All cases of a backend are counted by one program in callgrind, once for both benchmarks. ``python -m tracking count`` writes
the same results, without a process of asv for each of them.
"""

from pathlib import Path

import mha_core
from mha_conformance.bench.instructions.callgrind import missing
from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.bench.instructions.count import Count, counts

from .backends import BACKENDS, ready


class Instructions:
    """Instructions and estimated cycles of a call."""

    version = "1"
    timeout = 1200.0
    params = (BACKENDS, list(COUNTED))
    param_names = ("backend", "case")

    def setup_cache(self) -> dict[str, dict[str, Count]]:
        """Return the figures of each backend that is ready, by case."""
        figures = {}
        for backend in BACKENDS if not missing() else ():
            try:
                ready(backend)
            except NotImplementedError:
                continue
            figures[backend] = counts(backend, list(COUNTED), [Path(mha_core.__file__).parents[1]])
        return figures

    setup_cache.timeout = 1200.0  # type: ignore[attr-defined]

    def setup(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> None:
        if why := missing():
            raise NotImplementedError(why)
        if backend not in figures or figures[backend][case].skipped:
            raise NotImplementedError(f"{backend} does not have this")
        assert not figures[backend][case].wrong, figures[backend][case].wrong

    def track_instructions(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> int | None:
        return figures[backend][case].instructions

    def track_cycles(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> int | None:
        return figures[backend][case].cycles

    track_instructions.unit = "instructions"  # type: ignore[attr-defined]
    track_instructions.pretty_name = "instructions"  # type: ignore[attr-defined]
    track_cycles.unit = "cycles"  # type: ignore[attr-defined]
    track_cycles.pretty_name = "estimated cycles"  # type: ignore[attr-defined]
