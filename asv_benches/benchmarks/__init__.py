"""What asv follows over time, on every installed backend.

The cases are those of ``mha_core.bench`` in this tree, whatever commit is measured: they are found as ``tree.bench``, beside
the ``mha_core`` that is installed.
"""

import sys
import types
from pathlib import Path

tree = types.ModuleType("tree", "mha_core of the tree that holds these benchmarks.")
tree.__path__ = [str(Path(__file__).parents[2] / "mha_core")]
sys.modules.setdefault("tree", tree)
