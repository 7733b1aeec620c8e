"""An encoder layer beside torch's own, which has a fused path for inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .contender import Work
from .limits import MATRIX, Limit
from .ours import loaded, work

SEED = 0
D_MODEL, NUM_HEADS, D_FF = 512, 8, 2048
FUSED = "aten._transformer_encoder_layer_fwd.default"  # the one operation that torch's fast path is
ROUNDINGS = 200  # of the greatest number in the result, as conformance allows a layer; seen are 10 to 20


@dataclass(frozen=True)
class Layer:
    """(batch, length, 512) in float32 through a layer of 8 heads, d_ff 2048 and GELU."""

    batch: int
    length: int

    def arrays(self) -> tuple[np.ndarray, Any]:
        """x, and the layer on NumPy; no bias is 0 and no weight of a norm 1, so that forgetting one shows."""
        import mha_core as mha

        rng = np.random.default_rng(SEED)
        x = rng.standard_normal((self.batch, self.length, D_MODEL), dtype=np.float32)
        made = mha.EncoderLayer.init(
            d_model=D_MODEL, num_heads=NUM_HEADS, d_ff=D_FF, activation="gelu", seed=SEED, backend="numpy"
        )
        return x, made.map(lambda w: w + 0.02 * rng.standard_normal(w.shape, dtype=np.float32))

    @property
    def limit(self) -> Limit:
        """The products: four of d_model by d_model, two of d_model by d_ff, two over all pairs."""
        tokens = self.batch * self.length
        return Limit(MATRIX, 2 * tokens * (4 * D_MODEL**2 + 2 * D_MODEL * D_FF + 2 * self.length * D_MODEL))

    def judge(self) -> Callable[[Any], None]:
        """Against float64, all of it."""
        from mha_core.conformance import reference
        from mha_core.conformance.tolerance import UNIT_ROUNDOFF, assert_within

        x, layer = self.arrays()
        wide = layer.to("numpy", dtype="float64")
        exact = np.stack([reference.encoder_layer(each.astype(np.float64), wide) for each in x])
        bound = np.full(exact.shape, ROUNDINGS * UNIT_ROUNDOFF["float32"] * np.abs(exact).max())
        return lambda answer: assert_within("encoder_layer", answer, exact, bound)


def ours(problem: Layer, backend: str) -> Work:
    there = loaded(backend)
    numbers, layer = problem.arrays()
    x, layer = there.from_numpy(numbers), layer.to(backend)
    return work(there, lambda: layer(x))


def fast_path(problem: Layer) -> Work:
    """nn.TransformerEncoderLayer. Raises RuntimeError where torch does not take its fused path."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    numbers, layer = problem.arrays()
    x = torch.from_numpy(numbers)
    theirs = torch.nn.TransformerEncoderLayer(
        D_MODEL, NUM_HEADS, D_FF, dropout=0.0, activation="gelu", batch_first=True, dtype=torch.float32
    ).eval()
    theirs.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in _state_dict(layer).items()})
    with torch.inference_mode(), Operations() as ran:
        theirs(x)
    if ran.names != [FUSED]:
        raise RuntimeError(f"nn.TransformerEncoderLayer did not take its fast path, but {', '.join(ran.names)}")
    return Work(lambda: theirs(x), lambda out: out.numpy(), mode=torch.inference_mode)


def _state_dict(layer: Any) -> dict[str, np.ndarray]:
    """Our layer by torch's names; torch's matrices are (out, in)."""
    a, f = layer.attention, layer.feed_forward
    return {
        "self_attn.in_proj_weight": np.concatenate([a.w_q, a.w_k, a.w_v], axis=1).T,
        "self_attn.in_proj_bias": np.concatenate([a.b_q, a.b_k, a.b_v]),
        "self_attn.out_proj.weight": a.w_o.T,
        "self_attn.out_proj.bias": a.b_o,
        "linear1.weight": f.w_1.T,
        "linear1.bias": f.b_1,
        "linear2.weight": f.w_2.T,
        "linear2.bias": f.b_2,
        "norm1.weight": layer.norm_1.weight,
        "norm1.bias": layer.norm_1.bias,
        "norm2.weight": layer.norm_2.weight,
        "norm2.bias": layer.norm_2.bias,
    }
