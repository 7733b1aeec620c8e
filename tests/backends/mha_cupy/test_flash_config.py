"""The launch configuration of the flash kernels: thread blocks that fit the smallest GPU, and splits of the keys."""

from cuda_kernels import without_time_limits
from hypothesis import given
from hypothesis import strategies as st

from mha_cupy.attention import flash_config, flash_vjp

GPU_WITH_LEAST_SHARED_MEMORY = 99 << 10  # bytes of a thread block, for compute capability 8.6 and 8.9


@without_time_limits
@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 10**6), st.booleans())
def test_a_thread_block_fits_the_rows_and_the_smallest_gpu(dim, value_dim, rows, plain):
    block = flash_config.thread_block(dim, value_dim, rows, plain=plain)
    assert block.rows == 16 or block.rows < 2 * rows or (block.rows == 64 and rows > 32)
    assert block.keys % 16 == 0
    shared = 2 * ((block.rows + block.keys) * flash_config.pitch(dim) + block.keys * flash_config.pitch(value_dim))
    assert shared <= GPU_WITH_LEAST_SHARED_MEMORY


@without_time_limits
@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 10**6))
def test_a_thread_block_of_gradients_fits_the_smallest_gpu(dim, value_dim, count):
    warps, step = flash_vjp.own_and_step(dim, value_dim, count)
    assert warps == 4 or 16 * warps < 2 * max(count, 16)
    assert step % 16 == 0
    assert flash_vjp.shared_bytes(dim, value_dim, warps, step) <= GPU_WITH_LEAST_SHARED_MEMORY


@without_time_limits
@given(st.integers(1, 10**4), st.integers(1, 10**6), st.sampled_from([1, 17, 100]), st.integers(1, 200))
def test_keys_are_split_only_if_the_gpu_is_idle_and_keys_are_many(blocks, num_keys, rows, multiprocessors):
    block = flash_config.thread_block(128, 128, rows, plain=True)
    splits = flash_config.num_splits(blocks, num_keys, block, multiprocessors)
    assert splits == 1 or (splits * blocks * block.warps <= 8 * multiprocessors and num_keys // splits >= 4 * block.keys)


def test_one_query_of_one_head_occupies_the_whole_gpu():
    _, splits = flash_config.block_and_splits((1, 1, 1, 1, 128), (10**6, 128), plain=True, multiprocessors=132)
    assert splits == 8 * 132
