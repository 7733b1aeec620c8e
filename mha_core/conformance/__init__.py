"""The suite that judges any backend: ours, and anyone's who writes a plugin.

    mha conform NAME [--device D] [--dtype float32 ...] [-k EXPRESSION] [--quick] [--seed N]
                     [--report DIR]

which is ``pytest -p mha_core.conformance.plugin --pyargs mha_core.conformance --backend NAME ...``. It needs the extra
``conformance``. What is checked: docs/promises.md; what each test holds stands at the head of its module.
"""
