"""The module that Dask imports in each worker process of ``mha encode --workers``."""

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Ignore Ctrl-C: a terminal sends it to workers too, but the command decides when they stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
