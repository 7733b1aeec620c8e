"""Memory that a call needs beyond its arguments, on one thread: every thread adds scratch memory."""

from mha_conformance.bench import asv

from .backends import BACKENDS


class Memory(asv.Memory, backends=BACKENDS):
    """Bytes by which the peak of the process grows."""
