"""Linear maps by oneDNN: correct, and chosen only where they are faster."""

import pytest
import torch

import mha_core as mha
from mha_core.plugin import Call
from mha_torch import onednn


def call_of_linear(x, w):
    return Call("linear", (("x", tuple(x.shape)), ("w", tuple(w.shape))), x.dtype, x.device)


@pytest.mark.parametrize("shape", [(300, 128), (3, 100, 128), (2, 0, 128), (2, 128), (1, 1, 128), (128,)], ids=str)
def test_a_product_by_onednn_equals_the_algebra(rng, shape):
    x = torch.asarray(rng.normal(size=shape), dtype=torch.float32)
    w, b = (torch.asarray(rng.normal(size=size), dtype=torch.float32) for size in ((128, 96), (96,)))
    with mha.use_kernel("linear", "algebra"):
        expected = mha.linear(x, w, b)
    for y in (x, x.mT.contiguous().mT) if x.ndim > 1 else (x,):
        for weight in (w, w.mT.contiguous().mT, torch.cat([w, w], 1)[:, :96]):
            torch.testing.assert_close(onednn.linear(y, weight, b), expected)
            torch.testing.assert_close(onednn.linear(y, weight, None), expected - b, rtol=1e-5, atol=1e-4)


def test_gradients_of_no_rows(rng, monkeypatch):
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    w = torch.ones(1024, 512)
    y, pullback = mha.vjp(mha.linear, torch.ones(2, 0, 1024), w, torch.ones(512))
    d_x, d_w, d_b = pullback(y)
    assert d_x.shape == (2, 0, 1024) and d_w.shape == w.shape and not d_w.any() and not d_b.any()


def test_onednn_is_chosen_where_it_is_faster_and_no_gradient_is_recorded(rng, monkeypatch):
    x, w = (torch.asarray(rng.normal(size=(256, 256)), dtype=torch.float32) for _ in range(2))
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    assert onednn.supports(call_of_linear(x, w)) is None
    assert "multiplications" in onednn.supports(call_of_linear(x[:2], w))
    assert onednn.supports(call_of_linear(x[:1], w.repeat(2, 4))) is None  # reading the weight is what takes time
    assert "or a weight of" in onednn.supports(call_of_linear(x[:1], w))
    assert "float64" in onednn.supports(call_of_linear(x.double(), w.double()))
    monkeypatch.setattr(onednn, "_is_faster", lambda: False)
    assert "not known to be faster" in onednn.supports(call_of_linear(x, w))
    x.requires_grad_()
    assert mha.explain("linear", x, w).kernel == "functional"
    assert mha.linear(x, w).requires_grad


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, False),
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8481C", "avx512_f": True}, False),
    ],
    ids=str,
)
def test_onednn_is_faster_where_mkl_does_not_use_avx512(monkeypatch, known, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert onednn._is_faster.__wrapped__() is expected
    monkeypatch.setattr(onednn, "_is_faster", onednn._is_faster.__wrapped__)
    assert not onednn.is_twice_as_fast.__wrapped__()
    for feature in ("avx_vnni", "avx512_vp2intersect"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda feature=feature: {**known, feature: True})
        assert onednn.is_twice_as_fast.__wrapped__() is expected
