"""Products by oneDNN, on processors where MKL, which torch gives its float32 products to, is slow.

MKL takes its code for AVX-512 on Intel's processors only. oneDNN, which comes with torch as well, looks at what the processor
can do: on an EPYC of the fifth generation its products are 2.2 times as fast (1 and 2 threads, 256 to 4096 rows).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core.plugin import Call

_LEAST = 1 << 21  # multiplications: with fewer, 10 us for the choice of code are not made good


def supports(call: Call) -> str | None:
    x, w = call.shape("x"), call.shape("w")
    assert x is not None and w is not None
    if call.dtype != torch.float32 or call.device.type != "cpu":
        return f"is for float32 on the CPU, not for {call.dtype} on {call.device.type}"
    if not _is_faster():
        return "is not known to be faster than MKL on this processor"
    rows = torch.Size(x[:-1]).numel()
    return None if _is_large(rows, w) else f"is for at least {_LEAST} multiplications, in more than one row"


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b, without a gradient."""
    b = None if b is None else b.contiguous()  # of a bias it does not ask for the stride
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, w.mT, b, "none", [], "")
    return y


def fastest_linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b by oneDNN or MKL, inside a kernel that records no gradient."""
    if x.dtype == torch.float32 and x.is_cpu and _is_faster() and _is_large(x.shape[:-1].numel(), w.shape):
        return linear(x, w, b)
    return F.linear(x, w.mT, b)


def _is_large(rows: int, w: tuple[int, ...]) -> bool:
    return rows > 1 and rows * w[0] * w[1] >= _LEAST


@cache
def _is_faster() -> bool:
    """Whether there is AVX-512 that MKL does not take. Where torch does not tell, its own choice stands."""
    known = getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    held_back = known.get("avx512_f", False) and "Intel" not in known["cpu_name"]
    return bool(held_back and torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"))  # type: ignore[no-untyped-call]
