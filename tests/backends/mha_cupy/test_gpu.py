"""The CuPy plugin on a GPU: devices and streams.

`make gpu-check` judges its numbers, and arrays that come from NumPy and go back, by the conformance suite.
"""

from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest

import mha_core as mha
import mha_cupy
import mha_cupy.namespace as xp
from mha_conformance.oracle.tolerance import assert_within, exact_attention
from mha_core.dispatch.backend import load

BFLOAT16 = np.dtype(xp.bfloat16)
DEVICES = mha_cupy._devices()
with_gpu = pytest.mark.skipif(not DEVICES, reason="no CUDA device")
with_two_gpus = pytest.mark.skipif(len(DEVICES) < 2, reason="fewer than two CUDA devices")


@pytest.fixture
def gpu():
    return load("cupy")


@with_gpu
def test_from_numpy_copies_to_any_name_of_a_device(gpu):
    x = np.zeros(3, dtype=np.float32)
    for device in (None, 0, cupy.cuda.Device(0)):
        there = gpu.from_numpy(x, device)
        x += 1
        assert there.device == DEVICES[0] and (gpu.to_numpy(there) == x - 1).all()


@with_gpu
def test_arrays_are_created_on_the_given_device(gpu):
    x = xp.zeros((2,), device=DEVICES[0])
    assert x.device == DEVICES[0]
    for device in (None, 0, DEVICES[0]):
        made = [xp.arange(3, device=device), xp.full((2,), 1.0, device=device), xp.asarray([1.0], device=device)]
        made += [xp.zeros_like(x, device=device), mha.sinusoidal_positions(2, 4, backend="cupy", device=device)]
        assert all(y.device == DEVICES[0] for y in made)


@with_two_gpus
def test_arrays_are_created_on_a_second_device():
    for device in DEVICES[:2]:
        x = xp.ones((2,), device=device)
        made = [x, xp.zeros_like(x), xp.arange(3, device=device), xp.asarray([1.0], device=device)]
        made += [mha.LayerNorm.init(d_model=4, backend="cupy", device=device).weight]
        assert all(y.device == device for y in made)


@with_two_gpus
def test_arrays_of_another_device_than_the_current_one_are_refused(gpu):
    x = gpu.from_numpy(np.ones(3), 1)
    with DEVICES[0], pytest.raises(mha.BackendMismatch, match=r"^x is on device .*1.*, but cupy computes on .*0"):
        mha.relu(x)
    with DEVICES[1]:
        assert mha.relu(x).device == DEVICES[1]


@with_gpu
def test_dlpack_shares_arrays_on_the_device_and_copies_those_on_the_host():
    x = xp.arange(4, dtype=xp.float32)
    shared = xp.from_dlpack(x)
    x += 1
    np.testing.assert_array_equal(cupy.asnumpy(shared), [1, 2, 3, 4])
    host = np.arange(3.0)
    np.testing.assert_array_equal(cupy.asnumpy(xp.from_dlpack(host)), host)
    np.testing.assert_array_equal(np.from_dlpack(x, device="cpu"), [1, 2, 3, 4])
    with pytest.raises(BufferError):
        xp.from_dlpack(host, copy=False)


@with_gpu
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_dlpack_shares_with_torch(name):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this torch is built without CUDA")
    x = torch.arange(4, device="cuda").to(getattr(torch, name))
    shared = xp.from_dlpack(x)
    assert shared.dtype == getattr(xp, name)
    np.testing.assert_array_equal(cupy.asnumpy(shared).astype(np.float32), [0, 1, 2, 3])
    np.testing.assert_array_equal(torch.from_dlpack(shared).float().cpu(), [0, 1, 2, 3])


@with_gpu
def test_work_and_copies_go_to_the_current_stream(gpu, rng):
    """Each non-blocking stream has so much work that a copy on another stream would come too early."""
    x = (rng.normal(size=(1024, 1024)) / 32).astype(np.float32)
    expected = x
    for _ in range(8):
        expected = expected @ x
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    products = []
    for stream in streams:
        with stream:
            w = gpu.from_numpy(x)
            product = w
            for _ in range(8):
                product = mha.linear(product, w)
            products.append(product)
    for stream, product in zip(streams, products, strict=True):
        with stream:
            np.testing.assert_allclose(gpu.to_numpy(product), expected, atol=1e-4)


@with_gpu
def test_synchronize_waits_for_the_current_stream(gpu, rng):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = gpu.from_numpy(rng.normal(size=(2048, 2048)).astype(np.float32))
        for _ in range(8):
            x = mha.linear(x, x) / 64
        gpu.record.synchronize()
        assert stream.done


each_kernel = pytest.mark.parametrize(("kernel", "name"), [("flash", "float16"), ("flash", "bfloat16"), ("blocks", "float32")])


@with_gpu
@each_kernel
def test_attention_kernels_on_several_streams_and_threads(gpu, rng, kernel, name):
    """Each thread has a non-blocking stream; using another thread's memory or stream would give its results."""
    queries = [rng.normal(size=(1, 4, 300, 64)).astype(getattr(xp, name)) for _ in range(4)]

    def compute(x):
        with cupy.cuda.Stream(non_blocking=True), mha.use_kernel("attention", kernel):
            query = gpu.from_numpy(x)
            return [gpu.to_numpy(mha.scaled_dot_product_attention(query, query, query)) for _ in range(20)]

    alone = [compute(x)[0] for x in queries]
    with ThreadPoolExecutor(len(queries)) as threads:
        beside = list(threads.map(compute, queries))
    for x, first, repeated in zip(queries, alone, beside, strict=True):
        assert {first.tobytes()} == {out.tobytes() for out in repeated}
        exact = exact_attention(*[x.astype(np.float64)] * 3, dtype=name, rounds_weights=True)
        assert_within("out", first, exact.out, exact.out_bound)


@with_gpu
@each_kernel
@pytest.mark.parametrize("length", [1, 300])
def test_attention_kernels_do_not_wait_for_the_device(gpu, rng, kernel, name, length):
    query, key = (gpu.from_numpy(rng.normal(size=(1, 2, n, 64)).astype(getattr(xp, name))) for n in (length, 2000))
    much = gpu.from_numpy(rng.normal(size=(8192, 8192)).astype(np.float32))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream, mha.use_kernel("attention", kernel):
        for _ in range(2):  # compiles on first use
            mha.attention_state(query, key, key, mask=mha.causal(), query_offset=1700)
        stream.synchronize()
        for _ in range(8):
            cupy.matmul(much, much)
        mha.attention_state(query, key, key, mask=mha.causal(), query_offset=1700)
        assert not stream.done
        stream.synchronize()


@with_gpu
def test_where_selects_bfloat16_bit_for_bit(gpu):
    bits = np.arange(2**16, dtype=np.uint16)
    x = gpu.from_numpy(bits.view(BFLOAT16))
    chosen = xp.where(x == x, x, 1.0)
    assert chosen.dtype == BFLOAT16
    expected = np.where(np.isnan(bits.view(BFLOAT16).astype(np.float32)), np.asarray(1, BFLOAT16).view(np.uint16), bits)
    np.testing.assert_array_equal(gpu.to_numpy(chosen).view(np.uint16), expected)
