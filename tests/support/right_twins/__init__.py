"""Kernels of attention and its gradients that are right and unusual: other orders of sums, other bases, other formulas.

All must stay within the bounds of the conformance suite. This package is a plugin for NumPy, which computes by the twin that is
``chosen`` for an operation.
"""

import numpy as np

from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import Kernel, hookimpl

from .attention import ATTENTION
from .gradients import GRADIENTS

KERNELS = {"attention": ATTENTION, "attention_vjp": GRADIENTS}
HANDLES = {"attention": FEATURES["attention"] - {"weight_dropout", "int8"}, "attention_vjp": FEATURES["attention_vjp"]}
NAME = "right twin"
chosen = {}


@hookimpl
def mha_kernels():
    for op in KERNELS:
        yield Kernel("numpy", op, NAME, 1, load=f"{__name__}:by_{op}", handles=HANDLES[op], opt_in=True)


def by_attention(problem):
    with np.errstate(all="ignore"):
        return chosen["attention"](problem)


def by_attention_vjp(*arguments):
    with np.errstate(all="ignore"):
        return chosen["attention_vjp"](*arguments).gradients()
