"""The GPU benchmarks: each case with its contenders, its peer and its goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import mha_core as mha
from mha_conformance.oracle import attention as exact_attention
from peers.layer import torch_layer

from .target import BLOCKS, OURS, Target

OURS_ON_TORCH, PLAIN = "mha-core on torch", "cupy.matmul and a softmax"
_BYTES = 1 << 28  # of all input sets together: several times the size of a GPU's cache
_MOST = 1 << 34  # bytes of scores for which plain attention is timed


@dataclass(frozen=True)
class Comparison:
    """The contenders of a case, and the exact answer."""

    contenders: Mapping[str, Callable[[int], Any]]
    """Functions from the index of an input set to the answer; each is called with its `Target.kernels` demanded."""
    sets: int
    """Number of input sets, used in turns."""
    sample: Callable[[Any], Any]
    """Function from an answer to set 0 to the elements that `exact` contains."""
    exact: Any
    """The same elements in float64."""
    work: float
    """Least number of operations or bytes that the problem needs."""


class Problem(Protocol):
    """A computation to be timed."""

    unit: str
    """Unit of ``Comparison.work``: "FLOP" or "B"."""

    def comparison(self, target: Target) -> Comparison:
        """Make the inputs and compute the exact answer."""
        ...


@dataclass(frozen=True)
class Goal:
    """A goal of one contender."""

    contender: str
    at: float
    """Greatest ratio to the other contender's time; without one, the least share of the GPU's limit."""
    beside: str = ""
    """The other contender; empty if the goal is a share of the limit."""


@dataclass(frozen=True)
class Case:
    """A problem with its goals."""

    name: str
    problem: Problem
    peer: str
    """The contender whose error bounds that of the others."""
    goals: tuple[Goal, ...]


@dataclass(frozen=True)
class Attention:
    """Self-attention on standard normal numbers (1, heads, length, head_dim)."""

    heads: int
    length: int
    head_dim: int
    causal: bool
    unit = "FLOP"

    def comparison(self, target: Target) -> Comparison:
        """Make the inputs and compute the exact answer."""
        import torch

        rng, shape = np.random.default_rng(0), (1, self.heads, self.length, self.head_dim)
        sets = _sets(3 * math.prod(shape) * target.itemsize)
        pairs = [[target.normal(rng, *shape) for _ in range(3)] for _ in range(sets)]
        on_cupy, on_torch = ([[pair[side] for pair in one] for one in pairs] for side in (0, 1))
        mask = mha.causal() if self.causal else None

        contenders = {
            "torch SDPA": lambda at: torch.nn.functional.scaled_dot_product_attention(*on_torch[at], is_causal=self.causal),
            OURS_ON_TORCH: lambda at: mha.scaled_dot_product_attention(*on_torch[at], mask=mask),
            OURS: lambda at: mha.scaled_dot_product_attention(*on_cupy[at], mask=mask),
            BLOCKS: lambda at: mha.scaled_dot_product_attention(*on_cupy[at], mask=mask),
        }
        if self.heads * self.length**2 * 4 <= _MOST:
            contenders[PLAIN] = lambda at: _plain(target, *on_cupy[at], causal=self.causal)
        rows = np.unique(np.linspace(0, self.length - 1, 5).astype(int))
        heads = [0, self.heads - 1]
        query, key, value = (_numbers(target, x)[:, heads] for x in on_cupy[0])
        allowed = np.arange(self.length) <= rows[:, None] if self.causal else None
        exact, _, _ = exact_attention(query[:, :, rows], key, value, allowed=allowed)
        pairs = self.length * (self.length + 1) / 2 if self.causal else self.length**2
        return Comparison(
            contenders,
            sets,
            lambda out: _numbers(target, out)[:, heads][:, :, rows],
            exact,
            4 * self.heads * self.head_dim * pairs,
        )


@dataclass(frozen=True)
class Norm:
    """Layer normalization of standard normal numbers (rows, width)."""

    rows: int
    width: int
    unit = "B"

    def comparison(self, target: Target) -> Comparison:
        """Make the inputs and compute the exact answer."""
        import torch

        rng, size = np.random.default_rng(0), target.itemsize
        sets = _sets(self.rows * self.width * size)
        inputs = [target.normal(rng, self.rows, self.width) for _ in range(sets)]
        weight, bias = (target.normal(rng, self.width) for _ in range(2))

        contenders = {
            "torch layer_norm": lambda at: torch.nn.functional.layer_norm(inputs[at][1], (self.width,), weight[1], bias[1]),
            OURS: lambda at: mha.layer_norm(inputs[at][0], weight[0], bias[0]),
        }
        x, w, b = (_numbers(target, y[0]) for y in (inputs[0], weight, bias))
        x = x[:4] - x[:4].mean(axis=-1, keepdims=True)
        exact = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * w + b
        return Comparison(contenders, sets, lambda out: _numbers(target, out[:4]), exact, 2 * self.rows * self.width * size)


@dataclass(frozen=True)
class EncoderLayer:
    """An encoder layer with GELU and heads of 64, on standard normal numbers (batch, length, d_model)."""

    batch: int
    length: int
    d_model: int
    d_ff: int
    unit = "FLOP"

    def comparison(self, target: Target) -> Comparison:
        """Make the inputs and compute the exact answer."""
        import torch

        rng, heads = np.random.default_rng(0), self.d_model // 64
        layer = mha.EncoderLayer.init(
            d_model=self.d_model, num_heads=heads, d_ff=self.d_ff, activation="gelu", seed=0, backend="numpy"
        )
        module = torch_layer(layer).eval().to(target.device, getattr(torch, target.dtype))
        ours = layer.to(target.arrays.record.name, dtype=getattr(target.arrays.xp, target.dtype))
        shape = self.batch, self.length, self.d_model
        sets = _sets(math.prod(shape) * target.itemsize)
        inputs = [target.normal(rng, *shape) for _ in range(sets)]

        def on_torch(at: int) -> Any:
            with torch.inference_mode():
                return module(inputs[at][1])

        exact = layer.to("numpy", dtype=np.float64)(_numbers(target, inputs[0][0])[:1])
        tokens = self.batch * self.length
        work = tokens * (8 * self.d_model**2 + 4 * self.d_model * self.d_ff + 4 * self.length * self.d_model)
        return Comparison(
            {"nn.TransformerEncoderLayer": on_torch, OURS: lambda at: ours(inputs[at][0])},
            sets,
            lambda out: _numbers(target, out[:1]),
            exact,
            work,
        )


def _sets(size: int) -> int:
    """Return the number of input sets of ``size`` bytes each."""
    return max(2, min(8, _BYTES // max(1, size)))


def _numbers(target: Target, x: Any) -> Any:
    """Return an array in float64 on the host."""
    if type(x).__module__.startswith("torch"):
        return x.detach().to("cpu").double().numpy()
    return target.arrays.to_numpy(x).astype(np.float64)


def _plain(target: Target, query: Any, key: Any, value: Any, *, causal: bool) -> Any:
    """Return attention written with CuPy alone; in float16, because CuPy cannot multiply stacks of bfloat16 matrices."""
    xp = target.arrays.xp
    if not target.is_rehearsal:
        query, key, value = (xp.astype(x, xp.float16) for x in (query, key, value))
    s = xp.matmul(query, xp.matrix_transpose(key))
    s = s * xp.asarray(query.shape[-1] ** -0.5, dtype=s.dtype)
    if causal:
        s = xp.where(xp.tril(xp.ones(s.shape[-2:], dtype=xp.bool)), s, xp.asarray(-math.inf, dtype=s.dtype))
    s = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return xp.matmul(s / xp.sum(s, axis=-1, keepdims=True), value)


_TORCH_VS_SDPA, _VS_PLAIN = Goal(OURS_ON_TORCH, 1.02, "torch SDPA"), Goal(OURS, 1 / 6, PLAIN)
_CUPY_VS_SDPA = Goal(OURS, 1 / 0.95, "torch SDPA")
_SHARE_OF_COPY, _VS_TORCH_LAYER = Goal(OURS, 0.85), Goal(OURS, 1.1, "nn.TransformerEncoderLayer")
CASES = (
    *(
        Case(
            f"attention 1x16x{length}x128{', causal' * causal}",
            Attention(16, length, 128, causal),
            "torch SDPA",
            (_TORCH_VS_SDPA, *[_CUPY_VS_SDPA] * (length >= 4096), *[_VS_PLAIN] * (4096 <= length <= 16384)),
        )
        for length in (2048, 8192, 32768)
        for causal in (True, False)
    ),
    Case("layer norm 32768x4096", Norm(32768, 4096), "torch layer_norm", (_SHARE_OF_COPY,)),
    Case("encoder layer 32x512x1024", EncoderLayer(32, 512, 1024, 4096), "nn.TransformerEncoderLayer", (_VS_TORCH_LAYER,)),
)
REHEARSAL = (
    Case("attention 1x2x48x16, causal", Attention(2, 48, 16, True), "torch SDPA", (_TORCH_VS_SDPA, _VS_PLAIN)),
    Case("layer norm 32x64", Norm(32, 64), "torch layer_norm", (_SHARE_OF_COPY,)),
    Case("encoder layer 2x8x64", EncoderLayer(2, 8, 64, 128), "nn.TransformerEncoderLayer", (_VS_TORCH_LAYER,)),
)
