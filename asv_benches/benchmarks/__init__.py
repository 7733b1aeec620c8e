"""What asv follows over time, on every installed backend.

The cases are those of ``mha_core.bench`` in this tree, whatever commit is measured: they are found as ``tree.bench``, beside
the ``mha_core`` that is installed.

asv starts a process for each benchmark, which it names in the arguments. Libraries read how many threads they take when they
are loaded, and asv itself has loaded NumPy by then: so it begins anew with one said, but for the benchmarks of all cores.
"""

import os
import sys
import types
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")

if not any(word.startswith("all_cores.") for word in sys.argv):
    if hasattr(os, "sched_setaffinity"):  # obeyed by threads of any kind
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)

tree = types.ModuleType("tree", "mha_core of the tree that holds these benchmarks.")
tree.__path__ = [str(Path(__file__).parents[2] / "mha_core")]
sys.modules.setdefault("tree", tree)
