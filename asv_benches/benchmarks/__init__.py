"""The asv benchmarks, run on every installed backend.

The cases are those of ``mha_conformance.bench`` in this tree, whichever commit of ``mha_core`` is measured. asv starts a
process for each benchmark, whose name is among the process's arguments.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from mha_conformance.bench.threads import use_one_thread

if not any(word.startswith("all_cores.") for word in sys.argv):
    use_one_thread()
