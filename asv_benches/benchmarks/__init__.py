"""The asv benchmarks, run on every installed backend.

The cases are those of ``mha_conformance.bench`` in this tree, whichever commit of ``mha_core`` is measured.

asv starts a process for each benchmark, whose name is among the process's arguments. A library reads its number of threads when
it is loaded, and asv has loaded NumPy before this module is imported. Therefore the process restarts itself with one thread,
unless the benchmark uses all cores.
"""

import os
import sys
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")

if not any(word.startswith("all_cores.") for word in sys.argv):
    if hasattr(os, "sched_setaffinity"):  # one core limits the threads of every library
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))
