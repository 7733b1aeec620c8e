"""One thread for each library that a process of asv will load."""

import os
import sys

VARIABLES = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")


def use_one_thread() -> None:
    """Keep this process on one core, and restart it with one thread for each library, unless it has that.

    A library reads its number of threads when it is loaded, and asv loads NumPy before it imports a benchmark.
    """
    if hasattr(os, "sched_setaffinity"):  # one core limits the threads of every library
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if not VARIABLES.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | VARIABLES)
