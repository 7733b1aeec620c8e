"""MPI for mha-core: attention over the ranks of an mpi4py communicator, with arrays of NumPy and CuPy."""

from __future__ import annotations

from collections.abc import Iterable

from mha_core.plugin import Collectives, hookimpl


@hookimpl
def mha_collectives() -> Iterable[Collectives]:
    yield Collectives("mpi", 1, ("mpi4py.MPI:Comm",), "mha_mpi.ranks:Ranks", install="pip install 'mha-core[mpi]'")
