"""The conformance suite: tests that judge any backend and its kernels, ours or a plugin author's.

    mha conform NAME [--device D] [--dtype float32 ...] [-k EXPRESSION] [--quick] [--seed N]
                     [--report DIR]

The command runs ``pytest -p mha_conformance.plugin --pyargs mha_conformance --backend NAME ...``. docs/conformance.md
describes what is checked, and the docstring of each test module what its tests check.

- ``test_*.py``: the tests.
- ``plugin``: options, fixtures and collection. ``backend``: the backend under test.
- ``cases``: inputs of the tests. ``oracle``: exact answers and error bounds. ``judge``: compares a backend with the oracle.
- ``probes``: measure kernel calls, memory and imports. ``report``: the summary and the certificate.
"""

__version__ = "0.1.0"
