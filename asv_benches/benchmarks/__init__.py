"""What asv follows over time, on every installed backend.

The cases are those of ``mha_core.bench`` in this tree, whatever commit is measured: they are found as ``tree.bench``, beside
the ``mha_core`` that is installed.

asv starts a process for each benchmark, which it names in the arguments, and looks for it in one module after another. How many
threads the libraries take must be said before the first of these loads NumPy: here. One, but for the benchmarks of all cores.
"""

import os
import sys
import types
from pathlib import Path

if not any(word.startswith("all_cores.") for word in sys.argv):
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = "1"
    if hasattr(os, "sched_setaffinity"):  # obeyed by threads of any kind
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

tree = types.ModuleType("tree", "mha_core of the tree that holds these benchmarks.")
tree.__path__ = [str(Path(__file__).parents[2] / "mha_core")]
sys.modules.setdefault("tree", tree)
