"""Instructions of a call. ``python -m tracking count`` writes the same results, without a process of asv for each case."""

from mha_conformance.bench import asv

from .backends import BACKENDS


class Instructions(asv.Instructions, backends=BACKENDS):
    """Instructions and estimated cycles of a call."""
