"""The CuPy plugin: what is said where there is no GPU, what it knows of dtypes, and the whole of it where there is one."""

import os
import subprocess
import sys

import cupy
import numpy as np
import pytest

import mha_core as mha
import mha_cupy
import mha_cupy.namespace as xp
from mha_core.conformance import oracle
from mha_core.dispatch.backend import load
from test_cli import COMMAND, PLAIN

BFLOAT16 = np.dtype(xp.bfloat16)
DEVICES = mha_cupy._devices()
with_gpu = pytest.mark.skipif(not DEVICES, reason="no CUDA device can be used on this machine")
with_two_gpus = pytest.mark.skipif(len(DEVICES) < 2, reason="there are not two CUDA devices on this machine")
without_gpu = pytest.mark.skipif(bool(DEVICES), reason="this machine has a CUDA device: nothing is missing")
ASKING = {
    "argument": lambda: mha.sinusoidal_positions(2, 4, backend="cupy"),
    "use_backend": lambda: mha.use_backend("cupy").__enter__(),
    "set_default_backend": lambda: mha.set_default_backend("cupy"),
    "layer": lambda: mha.LayerNorm.init(d_model=4).to("cupy"),
}


def python(code, **environment):
    """Standard output of a Python program without a GPU, whatever this machine has."""
    environment = os.environ | PLAIN | {"CUDA_VISIBLE_DEVICES": ""} | environment
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# without a GPU


def test_it_is_registered_whether_or_not_there_is_a_gpu():
    row = next(row for row in mha.backends() if row.name == "cupy")
    assert (row.distribution, row.version, row.state) == ("mha-core", mha.__version__, "registered")


@without_gpu
def test_there_are_no_devices_without_a_gpu():
    assert DEVICES == []


@without_gpu
@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_asking_for_it_without_a_gpu_says_what_was_found_and_what_is_needed(ask):
    with pytest.raises(mha.BackendUnavailable) as error:
        ask()
    message = str(error.value)
    assert message.startswith(
        f"backend 'cupy' (from mha-core {mha.__version__}) cannot be used: NoDevice: no CUDA device can be used: cudaError"
    )
    assert message.endswith(f"; cupy {cupy.__version__} is installed, but needs a CUDA GPU and its driver")
    assert "\n" not in message
    assert isinstance(error.value.__cause__.__cause__, cupy.cuda.runtime.CUDARuntimeError)


@without_gpu
def test_nobody_is_told_to_install_what_is_installed():
    with pytest.raises(mha.BackendUnavailable) as error:
        ASKING["argument"]()
    assert "pip install" not in str(error.value)
    assert error.value.install == ""


def test_where_cupy_is_missing_the_install_line_is_the_remedy():
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import mha_core as mha\n"
        "try:\n    mha.sinusoidal_positions(2, 4, backend='cupy')\n"
        "except mha.BackendUnavailable as error:\n    print(error.install, '|', error)"
    )
    install, _, message = python(code).partition(" | ")
    assert install == "pip install 'mha-core[cupy]'"
    assert "ModuleNotFoundError: import of cupy halted" in message
    assert message.endswith(f"; install it with: {install}\n")


def test_the_other_backends_work_on_after_it_failed():
    code = (
        "import numpy, torch, mha_core as mha\n"
        "for _ in range(2):\n"
        "    try:\n        mha.set_default_backend('cupy')\n        print('ready')\n"
        "    except mha.BackendUnavailable:\n        pass\n"
        "    print(mha.sinusoidal_positions(1, 2).tolist(), mha.relu(numpy.asarray([-1.0, 2.0])).tolist())\n"
        "    print(mha.relu(torch.asarray([-1.0, 2.0])).tolist(), len(mha.backends()) >= 3)"
    )
    assert python(code) == "[[0.0, 1.0]] [0.0, 2.0]\n[0.0, 2.0] True\n" * 2


def test_the_command_says_in_one_line_that_there_is_no_gpu():
    environment = os.environ | PLAIN | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([COMMAND, "backends"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    row, line = (line for line in done.stdout.splitlines() if "cupy" in line)
    assert "unavailable" in row
    assert f"cupy (mha-core {mha.__version__}): unavailable: NoDevice: no CUDA device can be used: cudaError" in line
    assert line.endswith("needs a CUDA GPU and its driver")
    assert "pip install" not in line


def test_neither_importing_nor_listing_imports_it():
    code = "import sys, mha_core as mha; mha.backends(); print('mha_cupy' in sys.modules, 'cupy' in sys.modules)"
    assert python(code) == "True False\n"


def test_its_arrays_are_known_by_the_name_of_their_class():
    (backend,) = mha_cupy.mha_backends()
    assert f"{cupy.ndarray.__module__}:{cupy.ndarray.__qualname__}" in backend.types


# dtypes, which need no device


@pytest.mark.parametrize("dtype", [BFLOAT16, xp.bfloat16], ids=["dtype", "class"])
def test_bfloat16_is_of_the_kinds_of_floating_dtypes(dtype):
    for kind in ("real floating", "numeric", ("integral", "real floating"), BFLOAT16, (np.dtype("float32"), BFLOAT16)):
        assert xp.isdtype(dtype, kind) is True
    for kind in ("integral", "bool", "complex floating", ("integral", "bool"), np.dtype("float32"), ()):
        assert xp.isdtype(dtype, kind) is False
    with pytest.raises(ValueError, match="not a known kind"):
        xp.isdtype(dtype, "brain floating")


def test_the_kinds_of_other_dtypes_are_numpys():
    for name in ("float16", "float32", "float64", "int64", "uint8", "bool", "complex64"):
        for kind in ("real floating", "integral", "numeric", "bool", ("integral", "bool")):
            assert xp.isdtype(np.dtype(name), kind) is np.isdtype(np.dtype(name), kind)
        assert not xp.isdtype(np.dtype(name), BFLOAT16)
    for wrong in (None, 3, "float32"):
        with pytest.raises(TypeError):
            xp.isdtype(wrong, "real floating")


def test_the_limits_of_bfloat16():
    for dtype in (BFLOAT16, xp.bfloat16):
        limits = xp.finfo(dtype)
        assert (limits.bits, float(limits.eps), limits.dtype) == (16, 2.0**-7, BFLOAT16)
        assert float(limits.max) == -float(limits.min) == (2 - 2.0**-7) * 2.0**127
        assert float(limits.smallest_normal) == 2.0**-126
    assert [xp.finfo(dtype).bits for dtype in (xp.float16, xp.float32, xp.float64)] == [16, 32, 64]


def test_what_bfloat16_becomes_beside_others():
    assert xp.result_type(BFLOAT16, xp.bfloat16) == BFLOAT16
    assert xp.result_type(BFLOAT16, 1.5) == xp.result_type(1, BFLOAT16) == xp.result_type(BFLOAT16, True) == BFLOAT16
    assert xp.result_type(BFLOAT16, xp.float32) == np.float32
    assert xp.result_type(xp.float64, BFLOAT16, 1.0) == np.float64
    assert xp.result_type(xp.float32, 1.0) == np.float32


def test_the_namespace_has_every_function_that_its_parent_has():
    import array_api_compat.cupy as parent

    assert [name for name in parent.__all__ if not hasattr(xp, name)] == []


# with a GPU


@pytest.fixture
def gpu():
    return load("cupy")


@with_gpu
@pytest.mark.parametrize("name", ["bool", "int32", "int64", "float16", "float32", "float64", "bfloat16"])
def test_arrays_travel_there_and_back(gpu, rng, name):
    whole = (rng.normal(size=(4, 6)) * 3).astype(getattr(xp, name))
    read_only = whole.copy()
    read_only.flags.writeable = False
    for x in (whole, whole.T, whole[::-1, ::2], whole[:0], whole[0, 0, ...], read_only):
        for device in (None, 0, cupy.cuda.Device(0)):
            there = gpu.from_numpy(x, device)
            assert isinstance(there, cupy.ndarray) and there.dtype == x.dtype and there.device == DEVICES[0]
            back = gpu.to_numpy(there)
            assert isinstance(back, np.ndarray) and back.dtype == x.dtype
            np.testing.assert_array_equal(back, x)


@with_gpu
def test_what_is_sent_is_a_copy(gpu):
    x = np.zeros(3, dtype=np.float32)
    there = gpu.from_numpy(x)
    x[:] = 1
    assert (gpu.to_numpy(there) == 0).all()


@with_gpu
def test_its_devices_are_those_of_its_arrays_and_may_be_asked_for(gpu):
    x = xp.zeros((2,), device=DEVICES[0])
    assert x.device == DEVICES[0]
    for device in (None, 0, DEVICES[0]):
        made = [xp.arange(3, device=device), xp.full((2,), 1.0, device=device), xp.asarray([1.0], device=device)]
        made += [xp.zeros_like(x, device=device), mha.sinusoidal_positions(2, 4, backend="cupy", device=device)]
        assert all(y.device == DEVICES[0] for y in made)


@with_two_gpus
def test_what_is_asked_for_on_another_device_is_made_there():
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
def test_dlpack_shares_what_is_there_and_copies_what_is_on_the_host():
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
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.arange(4, device="cuda").to(getattr(torch, name))
    shared = xp.from_dlpack(x)
    assert shared.dtype == getattr(xp, name)
    np.testing.assert_array_equal(cupy.asnumpy(shared).astype(np.float32), [0, 1, 2, 3])
    np.testing.assert_array_equal(torch.from_dlpack(shared).float().cpu(), [0, 1, 2, 3])


@with_gpu
def test_work_and_copies_go_to_the_current_stream(gpu, rng):
    """On streams that wait for nobody, each with so much to do that a copy on another one would come too early."""
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


@with_gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_attention_is_that_of_the_oracle(gpu, rng, name):
    query, key, value = (
        rng.normal(size=shape).astype(getattr(xp, name)) for shape in [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)]
    )
    allowed = rng.random((5, 7)) < 0.7
    allowed[2] = False
    state = mha.attention_state(*map(gpu.from_numpy, (query, key, value)), mask=gpu.from_numpy(allowed))
    assert (state.out.dtype, state.lse.dtype) == (getattr(xp, name), np.float32)
    out, lse, _ = oracle.attention(*(x.astype(np.float64) for x in (query, key, value)), allowed=allowed)
    unit = float(xp.finfo(getattr(xp, name)).eps)
    np.testing.assert_allclose(gpu.to_numpy(state.out).astype(np.float64), out, rtol=unit, atol=1e-5)
    np.testing.assert_allclose(gpu.to_numpy(state.lse), lse, atol=1e-5)


X, W = (3, 5, 8), (8, 8)
PIECES = {
    "relu": (mha.relu, X),
    "silu": (mha.silu, X),
    "gelu": (mha.gelu, X),
    "rms_norm": (mha.rms_norm, X),
    "layer_norm": (mha.layer_norm, X, (8,), (8,)),
    "linear": (mha.linear, X, W, (8,)),
    "self_attention": (lambda *arrays: mha.self_attention(*arrays)[0], X, W, W, W),
    "multi_head_attention": (lambda *arrays: mha.multi_head_attention(*arrays, num_heads=2), X, W, W, W, W),
    "dropout": (lambda x: mha.dropout(x, x > 0, rate=0.25), X),
    "relative bias": (
        lambda x, table: mha.scaled_dot_product_attention(
            x, x, x, bias=mha.relative_bias(table, bidirectional=True, max_distance=4)
        ),
        (2, 3, 5, 8),
        (8, 3),
    ),
    "poison": (lambda x: mha.scaled_dot_product_attention(x, x, x, mask=~mha.prefix(1) & mha.prefix(4)), (2, 3, 5, 8)),
}


@with_gpu
@pytest.mark.parametrize("name", ["bfloat16", "float32"])
@pytest.mark.parametrize(("operation", "shapes"), [(f, s) for f, *s in PIECES.values()], ids=PIECES)
def test_every_piece_keeps_the_dtype_and_is_what_numpy_says(gpu, rng, operation, shapes, name):
    arrays = [rng.normal(size=shape).astype(getattr(xp, name)) for shape in shapes]
    y = operation(*map(gpu.from_numpy, arrays))
    assert y.dtype == getattr(xp, name)
    expected = operation(*(x.astype(np.float64) for x in arrays))
    unit = float(xp.finfo(y.dtype).eps)
    np.testing.assert_allclose(gpu.to_numpy(y).astype(np.float64), expected, rtol=16 * unit, atol=32 * unit)


@with_gpu
def test_where_chooses_bfloat16_bit_for_bit(gpu):
    bits = np.arange(2**16, dtype=np.uint16)
    x = gpu.from_numpy(bits.view(BFLOAT16))
    chosen = xp.where(x == x, x, 1.0)
    assert chosen.dtype == BFLOAT16
    expected = np.where(np.isnan(bits.view(BFLOAT16).astype(np.float32)), np.asarray(1, BFLOAT16).view(np.uint16), bits)
    np.testing.assert_array_equal(gpu.to_numpy(chosen).view(np.uint16), expected)


@with_gpu
def test_a_layer_moves_there_and_back(gpu, rng):
    x = rng.normal(size=(2, 5, 8)).astype(np.float32)
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, seed=0)
    there = layer.to("cupy")
    np.testing.assert_allclose(gpu.to_numpy(there(gpu.from_numpy(x))), layer(x), atol=1e-5)
    half = there.to("cupy", dtype="bfloat16")
    assert {a.dtype for a in half.arrays().values()} == {BFLOAT16}
    assert half(gpu.from_numpy(x.astype(BFLOAT16))).dtype == BFLOAT16
    for name, back in there.to("numpy").arrays().items():
        np.testing.assert_array_equal(back, layer.arrays()[name])


@with_gpu
def test_arrays_of_two_libraries_are_refused(gpu):
    x = np.ones((2, 2), dtype=np.float32)
    with pytest.raises(
        mha.BackendMismatch, match=r"^key is a numpy\.ndarray, but query is a cupy\.ndarray: write key = "
    ) as error:
        mha.scaled_dot_product_attention(gpu.from_numpy(x), x, gpu.from_numpy(x))
    arguments = {"key": x}
    exec(str(error.value).partition("write ")[2], {"mha_cupy": mha_cupy}, arguments)
    np.testing.assert_array_equal(gpu.to_numpy(arguments["key"]), x)
