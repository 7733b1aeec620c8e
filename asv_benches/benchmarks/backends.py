"""The installed backends.

asv imports this module to list the benchmarks, so it must not import an array library.
"""

import os
from pathlib import Path

import mha_core

KNOWN = ("numpy", "torch", "cupy")
"""Listed first, installed or not, because asv shows the history of listed parameters only."""

BACKENDS = [*KNOWN, *sorted({backend.name for backend in mha_core.backends()} - {*KNOWN})]

commit, here = os.environ.get("ASV_COMMIT", ""), Path(mha_core.__file__).parents[1].name
if commit and os.environ.get("ASV_ENV_TYPE") == "installed" and here != commit:
    raise ImportError(f"mha_core is imported from {here}; expected that of commit {commit}")
