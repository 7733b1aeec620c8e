"""Time and cost of all cases on one thread.

On one thread times are stable, and NumPy can be timed in the same process as any other library.
"""

from mha_conformance.bench import asv

from .backends import BACKENDS


class Time(asv.Time, backends=BACKENDS):
    """Seconds per call."""


class Cost(asv.Cost, backends=BACKENDS):
    """Time divided by that of plain NumPy."""
