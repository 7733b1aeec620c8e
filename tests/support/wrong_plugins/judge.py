"""Judge plugins of this folder one after another, in one process.

    python -m wrong_plugins.judge scores.scale_off scores.half_scores ...

prints JSON: {plugin: {"status": exit status, "failed": {test: promises of its markers}, "said": failures and skips}}.
The suite's own output goes to the standard error.
"""

import json
import os
import sys
from contextlib import redirect_stdout

import pytest

import wrong_plugins
from mha_conformance import test_parallel
from mha_core.plugin import unregister

WHOLE = ("test_covering", "test_transforms")
"""Sections of which the whole design is judged, pairs and triples."""


class Verdict:
    """The tests that failed in one run, each with the promises that it is marked with."""

    def __init__(self):
        self.failed, self.said = {}, []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        self.said += [] if report.passed else [report.longreprtext]
        if report.failed:
            self.failed[item.name] = [promise for mark in [item.get_closest_marker("promise")] if mark for promise in mark.args]
        return report


def judge(plugin):
    """Run the section that must find this plugin's fault, as ``mha conform`` does, and return its verdict."""
    os.environ["MHA_WRONG"] = plugin.id
    test_parallel.SECONDS = 3.0 if plugin.name == "one_at_a_time" else 60.0  # it hangs
    verdict = Verdict()
    registered = [plugin.registered, *["strict_plugin"] * (plugin.backend == "array_api_strict")]
    sections = [f"mha_conformance.{section}" for section in plugin.section.split()]
    # this kernel only: the backend may have others
    chosen = filter(None, [plugin.select, plugin.name if plugin.section in ("test_kernels", *WHOLE) else ""])
    arguments = [
        *("-p", "mha_conformance.plugin", "-p", "no:cacheprovider", "-q", "--pyargs", *sections),
        *("--backend", plugin.backend, "--dtype", plugin.dtype, "-k", " and ".join(f"({words})" for words in chosen)),
        *(f"--plugin={name}" for name in registered),
        *([] if plugin.section in WHOLE else ["--quick"]),
        *([] if plugin.is_right else ["-x"]),  # one failure is enough to find a fault
    ]
    try:
        status = pytest.main(arguments, plugins=[verdict])
    finally:
        for name in registered:
            unregister(sys.modules[name])
    return {"status": int(status), "failed": verdict.failed, "said": "\n".join(verdict.said)}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        verdicts = {name: judge(wrong_plugins.PLUGINS[name]) for name in sys.argv[1:]}
    print(json.dumps(verdicts))
