"""Imported first, before anything that loads NumPy: this process computes on one core, in whatever version it measures."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[name] = "1"
if hasattr(os, "sched_setaffinity"):  # obeyed by threads of any kind
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
