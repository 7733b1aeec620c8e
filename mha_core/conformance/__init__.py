"""The conformance suite: tests that judge any backend and its kernels, ours or a plugin author's.

    mha conform NAME [--device D] [--dtype float32 ...] [-k EXPRESSION] [--quick] [--seed N]
                     [--report DIR]

The command runs ``pytest -p mha_core.conformance.plugin --pyargs mha_core.conformance --backend NAME ...``. It needs the extra
``conformance``. docs/conformance.md says what is checked; each test module says at its top what its tests hold.

- ``test_*.py``: the tests, a module for each section.
- ``plugin``: options, fixtures and collection. ``backend``: the backend under test.
- ``cases``: what is asked of it. ``oracle``: the exact answers and their bounds. ``judge``: the two compared.
- ``probes``: measurements from outside. ``report``: the summary and the certificate.
"""
