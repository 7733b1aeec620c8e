"""float32 products by oneDNN, on processors where it is faster than MKL, torch's default.

MKL uses its AVX-512 code on Intel processors only. oneDNN, which torch contains too, chooses its code by the processor's
features. On a fifth-generation EPYC its products are 2.2 times as fast (1 and 2 threads, 256 to 4096 rows). A fourth-generation
one takes two cycles for 512 bits: there they are 1.04 to 1.12 times as fast (1 thread, 512 and 2048 rows). Up to 16 rows take
0.3 to 0.8 of MKL's time with a large weight, which is read from memory.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core.plugin import Call

_MIN_WORK = 1 << 21  # multiplications; with fewer, the 10 us that oneDNN needs to choose its code are not recovered,
_MIN_WEIGHT = 1 << 19  # unless the weight has so many numbers: reading them takes longer


def supports(call: Call) -> str | None:
    x, w = call.shape("x"), call.shape("w")
    assert x is not None and w is not None
    if reason := unfit(call.dtype, call.device):
        return reason
    rows = torch.Size(x[:-1]).numel()
    return None if _is_large(rows, w) else f"needs at least {_MIN_WORK} multiplications, or a weight of {_MIN_WEIGHT} numbers"


def unfit(dtype: Any, device: Any) -> str | None:
    """Return why products are not faster by oneDNN, whatever their sizes."""
    if dtype != torch.float32 or device.type != "cpu":
        return f"supports float32 on the CPU, not {dtype} on {device.type}"
    return None if _is_faster() else "is not known to be faster than MKL on this processor"


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b, without a gradient."""
    if x.shape[:-1].numel() == 1 and not w.mT.is_contiguous():  # MKL takes 0.6 to 0.8 of the time
        return F.linear(x, w.mT, b)
    b = None if b is None else b.contiguous()  # oneDNN ignores the stride of a bias
    # oneDNN takes 1000 times as long for a part of a matrix
    w = w if w.is_contiguous() or w.mT.is_contiguous() else w.contiguous()
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, w.mT, b, "none", [], "")
    return y


def linear_vjp(
    x: Tensor, w: Tensor, b: Tensor | None, d_out: Tensor, *, wanted: Set[str]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx = d w^T, dw = x^T d, db = sum d, the last two summed over all rows; without gradients of their own."""
    rows, d = x.reshape(-1, x.shape[-1]), d_out.reshape(-1, d_out.shape[-1])
    dx = linear(d, w.mT, None).reshape(x.shape) if "x" in wanted else None
    dw = linear(rows.mT, d, None) if "w" in wanted else None
    return dx, dw, d.sum(0) if "b" in wanted else None


def fastest_linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b by oneDNN or MKL, for kernels that record no gradient."""
    if x.dtype == torch.float32 and x.is_cpu and _is_faster() and _is_large(x.shape[:-1].numel(), w.shape):
        return linear(x, w, b)
    return F.linear(x, w.mT, b)


def fastest_product(x: Tensor, y: Tensor) -> Tensor:
    """x y of matrices of three axes, by oneDNN or MKL, for kernels that record no gradient."""
    rows, width = x.shape[-2:]
    if x.dtype == torch.float32 and x.is_cpu and _is_faster() and _is_large(rows, (width, y.shape[-1])) and len(x) == 1:
        return linear(x[0], y[0], None)[None]
    return torch.bmm(x, y)


def _is_large(rows: int, w: tuple[int, ...]) -> bool:
    return rows > 0 and (rows * w[0] * w[1] >= _MIN_WORK or w[0] * w[1] >= _MIN_WEIGHT)


@cache
def is_twice_as_fast() -> bool:
    """Return whether oneDNN is faster and the processor computes 512 bits in a cycle, as EPYCs do from the fifth generation on.

    AVX-VNNI and AVX512_VP2INTERSECT tell it from the fourth generation, which lacks both.
    """
    features = _capabilities()
    return _is_faster() and bool(features.get("avx_vnni", False) or features.get("avx512_vp2intersect", False))


def _capabilities() -> dict[str, Any]:
    """Return the processor's features, as torch names them; none if it does not report them."""
    features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    return features


@cache
def _is_faster() -> bool:
    """Return whether the processor has AVX-512 that MKL does not use."""
    features = _capabilities()
    unused = features.get("avx512_f", False) and "Intel" not in features["cpu_name"]
    return bool(unused and torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"))  # type: ignore[no-untyped-call]
