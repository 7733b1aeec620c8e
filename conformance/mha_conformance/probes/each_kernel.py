"""Memory that attention or its gradients take beyond their arguments, by each kernel and the algebra, in a new process.

    python -m mha_conformance.probes.each_kernel OPERATION BACKEND DTYPE [DEVICE] [--case NAME] [--plugin MODULE] ...

prints JSON: for each kernel of ``attention`` or ``attention_vjp`` and for the algebra, for each case, by how many bytes the
process grew after its arguments were made, and what is wrong with the numbers; null if the kernel refuses the case. If the
system cannot reset the peak, a case counts only memory beyond that of earlier cases: excessive memory shows in the first.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module

from mha_core.plugin import register
from mha_core.shared import ALGEBRA, registry

from ..find import find
from . import attention_memory, gradient_memory

PROBES = {"attention": attention_memory, "attention_vjp": gradient_memory}


def main(arguments: list[str] | None = None) -> None:
    """Print what was measured as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m mha_conformance.probes.each_kernel", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("operation", choices=PROBES)
    parser.add_argument("backend")
    parser.add_argument("dtype")
    parser.add_argument("device", nargs="?")
    parser.add_argument("--case", action="append")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    backend, probe = find(given.backend, given.device, [given.dtype]), PROBES[given.operation]
    kernels = [kernel.name for kernel in registry().kernels.get((backend.name, given.operation), ())]
    measured = {
        kernel: {case: probe.measured(backend, given.dtype, kernel, case) for case in given.case or probe.CASES}
        for kernel in (*kernels, ALGEBRA)
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
