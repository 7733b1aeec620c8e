"""The promises of docs/promises.md by number, with the names that reports use.

A test is marked with the promises that it checks: ``@pytest.mark.promise(7)``, or ``promise(0, 6)`` for several. ``pytestmark``
marks all tests of a module; a test's own mark replaces its module's.
"""

from __future__ import annotations

PROMISES = {
    0: "order of work and accuracy",  # not a promise itself; all others rely on right numbers
    1: "a fully masked row is zero",
    2: "lse is a natural logarithm",
    3: "masked means excluded",
    4: "true means attend",
    5: "alignment is never guessed",
    6: "options compose or raise",
    7: "poison stays out",
    8: "empty axes work",
    9: "half precision accumulates in float32",
    10: "integers and mixed inputs are type errors",
    11: "masks and biases broadcast",
    12: "strides do not matter, inputs are not written",
    13: "memory is linear",
    14: "threads give the same bits",
    15: "bad input gets a clear error",
}
