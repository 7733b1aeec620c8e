"""Kernels whose fates tests/test_conformance_report.py reads in reports: one that refuses all, one that does what is asked.

``pytest --plugin reported_plugin``, with MHA_REPORTED one of right, wrong, nan, dies, or the path of a folder to take away.
"""

import os
import shutil

import numpy as np

from mha_core.plugin import Kernel, hookimpl

FATE = os.environ.get("MHA_REPORTED", "right")


def relu(x):
    if FATE == "dies":
        os._exit(7)  # as a segmentation fault would end it
    if os.path.isabs(FATE):
        shutil.rmtree(FATE, ignore_errors=True)
    return np.maximum(x, 0) * x.dtype.type({"wrong": 2, "nan": np.nan}.get(FATE, 1))


@hookimpl
def mha_kernels():
    yield Kernel("numpy", "relu", "with|bar", 1, "reported_plugin:relu", priority=9)
    yield Kernel(
        "numpy", "attention", "never", 1, "no:where", supports=lambda call: "not today", opt_in="waits", source=lambda: "text"
    )
