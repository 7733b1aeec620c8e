"""Promise 15 while a kernel is demanded by name: bad input gets the same error, and no kernel is asked.

test_refusals tries the bad inputs one by one, with what is chosen.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.bad_inputs import BAD_INPUTS, SHAPES
from .probes.computed_by import ComputedBy

SECTION = "promises"


@pytest.mark.promise(15)
def test_15_bad_input_is_an_error_whatever_is_demanded(backend: BackendUnderTest, attention_by: ComputedBy) -> None:
    good = {name: np.ones(shape) for name, shape in SHAPES.items()}
    for bad in BAD_INPUTS:
        for demand in (nullcontext(), attention_by.demanded()):
            arguments = {name: backend.array(x) for name, x in good.items()}
            arguments |= {name: make(backend.array) for name, make in bad.change.items()}
            with demand, pytest.raises(bad.error) as raised:
                mha.attention_state(**arguments)
            assert bad.message in str(raised.value)
    assert not attention_by.seen, "a kernel was asked before the arguments were checked"
