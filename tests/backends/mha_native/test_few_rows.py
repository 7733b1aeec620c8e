"""The compiled linear map of few rows: right on every level, in any layout, and the same bits for any rows and threads."""

import ml_dtypes
import numpy as np
import pytest
import torch
from native import LEVELS, needs_native

import mha_core as mha

pytestmark = [needs_native, pytest.mark.usefixtures("native")]
DTYPES = {"float32": (np.float32, torch.float32, 2**-24), "bfloat16": (ml_dtypes.bfloat16, torch.bfloat16, 2**-8)}


@pytest.fixture(params=LEVELS)
def at_level(request, native):
    """The compiled module, held at a level."""
    native.use_level(request.param)
    yield native
    native.use_level(None)


def by_native(x, w, b=None):
    """Return x w + b by the kernel, whatever the sizes are."""
    from mha_native import on_numpy_few_rows, on_torch_few_rows

    return (on_numpy_few_rows if isinstance(x, np.ndarray) else on_torch_few_rows).linear(x, w, b)


def rounded(x, dtype):
    """Return numbers of a dtype of NumPy."""
    return x.astype(DTYPES[dtype][0])


def close(got, x, w, b, dtype):
    """Check that sums are right to a few roundings of their terms, however they are added up."""
    x, w, b, got = (np.asarray(part, dtype=np.float64) for part in (x, w, b, got))
    size = np.abs(x) @ np.abs(w) + np.abs(b)
    bound = (len(w) ** 0.5 + 2) * 2**-24 * size + DTYPES[dtype][2] * np.abs(x @ w + b) * (dtype == "bfloat16")
    assert (np.abs(got - (x @ w + b)) <= bound).all()


LAYOUTS = {
    "by input": lambda w: w,
    "by output": lambda w: np.ascontiguousarray(w.T).T,
    "a part, by input": lambda w: np.concatenate([w, w], axis=1)[:, : w.shape[1]],
    "a part, by output": lambda w: np.concatenate([w, w], axis=0).T.copy().T[: len(w)],
    "with gaps": lambda w: np.repeat(np.repeat(w, 2, axis=0), 2, axis=1)[::2, ::2],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 5), (64, 64), (67, 131), (130, 1030), (1030, 33)])
def test_products_in_any_layout_are_right(at_level, rng, dtype, layout, inputs, outputs):
    w, b = rng.normal(size=(inputs, outputs)), rounded(rng.normal(size=outputs), dtype)
    w = LAYOUTS[layout](rounded(w, dtype))
    for rows in (1, 2, 3, 5, 8):
        x = rounded(rng.normal(size=(rows, inputs)), dtype)
        close(by_native(x, w, b), x, w, b, dtype)
        close(by_native(x, w), x, w, 0, dtype)
        for row, alone in zip(by_native(x, w, b), x, strict=True):
            np.testing.assert_array_equal(row, by_native(alone, w, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_has_the_bits_of_numpy(rng, dtype, layout):
    w, x = LAYOUTS[layout](rounded(rng.normal(size=(70, 90)), dtype)), rounded(rng.normal(size=(2, 3, 70)), dtype)
    b = rounded(rng.normal(size=180), dtype)[::2]
    kind = DTYPES[dtype][1]

    def tensor(array):
        return torch.asarray(np.asarray(array, dtype=np.float32)).to(kind)

    strided = tensor(w.base if w.base is not None else w).as_strided(w.shape, [step // w.itemsize for step in w.strides])
    got = by_native(tensor(x), strided, tensor(b))
    np.testing.assert_array_equal(got.float().numpy(), np.asarray(by_native(x, w, b), dtype=np.float32))
    turned = tensor(x).mT.contiguous().mT  # rows with gaps
    assert torch.equal(by_native(turned, strided, tensor(b)), got)
    negative = torch._neg_view(-tensor(x))  # whose sign is not in memory
    assert torch.equal(by_native(negative, strided, tensor(b)), got)


def test_any_number_of_threads_gives_the_same_bits(rng, monkeypatch):
    from mha_native import on_numpy_few_rows

    x, results = rng.normal(size=(3, 600)).astype(np.float32), []
    for w in (rng.normal(size=(600, 700)).astype(np.float32), rng.normal(size=(700, 600)).astype(np.float32).T):
        for threads in (1, 2, 5):
            monkeypatch.setattr(on_numpy_few_rows, "threads_here", lambda threads=threads: threads)
            results.append(by_native(x, w))
        assert all(np.array_equal(result, results[-1]) for result in results[-3:])


def test_what_is_not_finite_stays_in_its_row(at_level, rng):
    for dtype in DTYPES:
        x, w = rounded(rng.normal(size=(6, 40)), dtype), rounded(rng.normal(size=(40, 20)), dtype)
        x[1, 39], x[2, 0], x[4, 33] = np.nan, np.inf, -np.inf
        for weight in (w, np.ascontiguousarray(w.T).T):
            finite = np.isfinite(by_native(x, weight).astype(np.float32))
            assert finite.all(axis=1).tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_which_calls_it_computes(backend):
    xp = {"numpy": np, "torch": torch}[backend]
    w = xp.ones((512, 256), dtype=xp.float32)

    def said(rows, w):
        return str(mha.explain(mha.linear, xp.ones((rows, len(w)), dtype=w.dtype), w))

    assert mha.explain(mha.linear, w[:8], w.T).kernel == "native"
    assert "computes 1 to 8 rows, not 0" in said(0, w) and "computes 1 to 8 rows, not 9" in said(9, w)
    assert "is for weights of 131072 numbers or more, not 130560" in said(8, w[:, :255])
    half = w.astype(np.float16) if backend == "numpy" else w.half()
    assert "computes in float32 and bfloat16, not in" in said(2, half)
    if backend == "torch":
        w.requires_grad_()
        assert mha.linear(w[:2, :], w.T).requires_grad


def test_tensors_that_are_no_arrays_in_memory_are_computed_by_torch():
    class Subclass(torch.Tensor):
        """Any other class."""

    x, w = torch.ones(3, 512), torch.ones(512, 300)
    assert mha.explain(mha.linear, x, w).kernel == "native"
    assert type(mha.linear(x.as_subclass(Subclass), w)) is Subclass
    assert torch.equal(mha.linear(x, w.to_sparse()), x @ w)
    assert not mha.linear(torch._efficientzerotensor((3, 512)), w).any()
    x.untyped_storage().resize_(0)  # as between two uses of an offloaded tensor
    with pytest.raises(RuntimeError, match=r"not allocated|storage"):
        mha.linear(x, w)
