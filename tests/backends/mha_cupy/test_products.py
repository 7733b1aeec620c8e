"""How stacks of matrices are given to cuBLAS: each matrix is read where it lies, and each product is computed once."""

from itertools import product

import numpy as np
from cuda_kernels import without_time_limits
from hypothesis import given
from hypothesis import strategies as st

from mha_cupy.products import Operand, gemm_calls, operand

sizes = st.integers(1, 4)


@without_time_limits
@given(sizes, sizes, st.integers(0, 9), st.integers(0, 9))
def test_a_matrix_is_read_without_a_copy_if_it_can_be(rows, cols, down, across):
    read = operand((rows, cols), (down, across))
    places = {(i, j): i * down + j * across for i in range(rows) for j in range(cols)}

    def places_of(leading, transposed):
        return {(i, j): i + j * leading if transposed else i * leading + j for i in range(rows) for j in range(cols)}

    if read is None:
        for transposed in (False, True):
            least = rows if transposed else cols
            assert not any(places == places_of(leading, transposed) for leading in range(least, 40))
    else:
        assert read.leading >= (rows if read.transposed else cols)
        assert places == places_of(read.leading, read.transposed)


@without_time_limits
@given(st.lists(st.tuples(sizes, st.sampled_from([0, 1, 3]), st.sampled_from([0, 1])), max_size=4))
def test_each_matrix_of_a_stack_is_in_one_call(axes):
    shape, strides = tuple(size for size, *_ in axes), []
    step = 1
    for size, of_a, of_b in reversed(axes):  # a with gaps or shared, b in one piece or shared, out in one piece
        strides.append((of_a * step, of_b * step, step))
        step *= size
    strides = tuple(reversed(strides))
    calls = gemm_calls(shape, Operand(False, 1), Operand(True, 2), Operand(False, 3), strides)
    assert (calls.a.leading, calls.b.leading, calls.leading) == (1, 2, 3)
    places = product(calls.offsets, range(calls.count))
    called = [tuple(x + at * y for x, y in zip(offset, calls.step, strict=True)) for offset, at in places]
    every = [tuple(np.asarray(at, int) @ np.asarray(strides, int).reshape(-1, 3)) for at in product(*map(range, shape))]
    assert sorted(called) == sorted(map(tuple, np.asarray(every).tolist()))
    assert len(calls.offsets) <= max(1, int(np.prod(shape)) // max((1, *shape)))
