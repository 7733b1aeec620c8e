"""Two kernels for tests/conformance/report/test_certificate.py: one refuses every call, the other does what MHA_REPORTED says.

MHA_REPORTED is right, wrong, nan, dies, or the path of a folder to delete.
"""

import os
import shutil

import numpy as np

from mha_core.plugin import Kernel, hookimpl

BEHAVIOUR = os.environ.get("MHA_REPORTED", "right")


def relu(x):
    if BEHAVIOUR == "dies":
        os._exit(7)  # as a segmentation fault would
    if os.path.isabs(BEHAVIOUR):
        shutil.rmtree(BEHAVIOUR, ignore_errors=True)
    return np.maximum(x, 0) * x.dtype.type({"wrong": 2, "nan": np.nan}.get(BEHAVIOUR, 1))


@hookimpl
def mha_kernels():
    yield Kernel("numpy", "relu", "with|bar", 1, "reported_plugin:relu", priority=9)
    yield Kernel(
        "numpy", "attention", "never", 1, "no:where", supports=lambda call: "not today", opt_in="waits", source=lambda: "text"
    )
