"""Training problems and torch's work for them: a step of an encoder layer, and one of the optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.layer import D_FF, D_MODEL, NUM_HEADS, SEED, Layer
from mha_conformance.bench.limits import COPY, MATRIX, Limit
from mha_conformance.bench.timing import Work, loaded
from mha_conformance.oracle.layers import Layers
from mha_conformance.oracle.tolerance import UNIT_ROUNDOFF, assert_within

from .layer import state_dict

ROUNDINGS = 400  # of the greatest number in a gradient of a layer


@dataclass(frozen=True)
class LayerStep(Layer):
    """An encoder layer, and the gradients of x and of all weights for a standard normal gradient of the result."""

    activation: str = "gelu"

    def arrays(self) -> tuple[np.ndarray, Any]:
        """Return x and the layer on NumPy."""
        x, layer = super().arrays()
        return x, replace(layer, feed_forward=replace(layer.feed_forward, activation=self.activation))

    def d_out(self) -> np.ndarray:
        """Return the gradient of the result, (batch, length, d_model)."""
        shape = self.batch, self.length, D_MODEL
        return np.random.default_rng(SEED + 1).standard_normal(shape, dtype=np.float32)

    @property
    def limit(self) -> Limit:
        """Three times the products of the result, and half as much again over all pairs, whose weights are computed twice."""
        return Limit(MATRIX, 3 * super().limit.amount + 2 * self.batch * self.length**2 * D_MODEL)

    def judge(self) -> Callable[[Any], None]:
        """Return a check of all gradients against float64."""
        x, layer = self.arrays()
        wide = layer.to("numpy", dtype="float64")
        arrays, oracle = {"x": x.astype(np.float64), **wide.arrays()}, Layers()
        out = oracle.encoder_layer(arrays["x"], wide)
        exact = oracle.gradients(out, self.d_out().astype(np.float64), of=arrays)

        def check(answer: Any) -> None:
            missing = sorted(set(layer.arrays()) - set(answer))
            assert not missing, f"there are no gradients of {', '.join(missing)}"
            for name, found in answer.items():
                bound = ROUNDINGS * UNIT_ROUNDOFF["float32"] * max(np.abs(exact[name]).max(), 1.0)
                assert_within(f"d_{name}", found, exact[name], np.full(exact[name].shape, bound))

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core's layer and of its pullback on a backend."""
        import mha_core as mha

        library = loaded(backend)
        numbers, layer = self.arrays()
        x, layer, d_out = library.from_numpy(numbers), layer.to(backend), library.from_numpy(self.d_out())

        def step() -> Any:
            _, pullback = mha.vjp(layer, x)
            return pullback(d_out)

        def read(found: Any) -> dict[str, np.ndarray]:
            d_layer, d_x = found
            return {name: library.to_numpy(d) for name, d in (d_layer.arrays() | {"x": d_x}).items()}

        return Work(step, read, library.record.synchronize)


@dataclass(frozen=True)
class OptimiserStep:
    """A step of AdamW over the weights of a small text encoder: vectors of words, and encoder layers."""

    words: int = 30522
    d_model: int = 384
    layers: int = 6

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights, those of MiniLM by default: 22.6 million numbers."""
        d, d_ff = self.d_model, 4 * self.d_model
        layer = [(d, d), (d,)] * 4 + [(d, d_ff), (d_ff,), (d_ff, d), (d,)] + [(d,)] * 4
        return ((self.words, d), (512, d), *layer * self.layers)

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return weights and gradients."""
        rng = np.random.default_rng(SEED)
        weights, gradients = (
            {str(at): rng.standard_normal(shape, dtype=np.float32) for at, shape in enumerate(self.shapes)} for _ in range(2)
        )
        return weights, gradients

    def small(self) -> OptimiserStep:
        """Return the same problem with few words and one layer."""
        return replace(self, words=100, d_model=32, layers=1)

    @property
    def limit(self) -> Limit:
        """Reading weight, gradient and two moments, and writing all but the gradient."""
        return Limit(COPY, 7 * 4 * sum(int(np.prod(shape)) for shape in self.shapes))

    def judge(self) -> Callable[[Any], None]:
        """Return a check of a first step, in which each weight moves by the learning rate towards lower loss, and decays."""
        weights, gradients = self.arrays()
        exact = {name: (1 - 1e-5) * w - 1e-3 * np.sign(gradients[name]) for name, w in weights.items()}

        def check(answer: Any) -> None:
            for name, w in answer.items():
                moved = np.abs(gradients[name]) > 1e-3  # below, eps counts
                np.testing.assert_allclose(np.where(moved, w, exact[name]), exact[name], atol=1e-5)

        return check

    def ours(self, backend: str) -> Work:
        """Return steps of mha_core's optimiser, each of which continues the one before; the first is read."""
        import mha_core as mha

        library = loaded(backend)
        weights, gradients = ({name: library.from_numpy(x) for name, x in given.items()} for given in self.arrays())
        optimiser = mha.AdamW()
        now = [weights, optimiser.init(weights)]
        first: list[Any] = []

        def step() -> Any:
            now[:] = optimiser.step(now[0], gradients, now[1])
            if not first:
                first.append({name: library.to_numpy(x).copy() for name, x in now[0].items()})
            return first[0]

        return Work(step, lambda found: found, library.record.synchronize)


def sdpa_step(problem: AttentionStep) -> Work:
    """Return the call of torch's attention and of its own gradients."""
    import torch

    arrays = [torch.from_numpy(x).requires_grad_() for x in problem.arrays()]
    d_out = torch.from_numpy(problem.d_out())

    def step() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=problem.causal)
        return torch.autograd.grad(out, arrays, d_out)

    return Work(step, lambda found: [x.numpy() for x in found])


def sdpa_backward(problem: AttentionBackward) -> Work:
    """Return torch's own gradients of its attention, after a call that is not timed."""
    import torch

    arrays = [torch.from_numpy(x).requires_grad_() for x in problem.arrays()]
    d_out = torch.from_numpy(problem.d_out())
    out = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=problem.causal)
    return Work(lambda: torch.autograd.grad(out, arrays, d_out, retain_graph=True), lambda found: [x.numpy() for x in found])


def layer_step(problem: LayerStep) -> Work:
    """Return the call of nn.TransformerEncoderLayer and of its gradients, read under the names of ours."""
    import torch

    numbers, layer = problem.arrays()
    theirs = torch.nn.TransformerEncoderLayer(
        D_MODEL, NUM_HEADS, D_FF, dropout=0.0, activation=problem.activation, batch_first=True, dtype=torch.float32
    )
    theirs.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in state_dict(layer).items()})
    x, d_out = torch.from_numpy(numbers).requires_grad_(), torch.from_numpy(problem.d_out())
    named = dict(theirs.named_parameters())

    def step() -> Any:
        return torch.autograd.grad(theirs(x), [x, *named.values()], d_out)

    def read(found: Any) -> dict[str, np.ndarray]:
        d_x, *others = (d.numpy() for d in found)
        return ours_from(dict(zip(named, others, strict=True))) | {"x": d_x}

    return Work(step, read)


def ours_from(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays under the names of mha_core's layer, from those under torch's: the opposite of ``state_dict``."""
    found = {
        "attention.w_o": theirs["self_attn.out_proj.weight"].T,
        "attention.b_o": theirs["self_attn.out_proj.bias"],
        "feed_forward.w_1": theirs["linear1.weight"].T,
        "feed_forward.b_1": theirs["linear1.bias"],
        "feed_forward.w_2": theirs["linear2.weight"].T,
        "feed_forward.b_2": theirs["linear2.bias"],
    }
    for at, name in enumerate("qkv"):
        third = slice(at * D_MODEL, (at + 1) * D_MODEL)
        found[f"attention.w_{name}"] = theirs["self_attn.in_proj_weight"][third].T
        found[f"attention.b_{name}"] = theirs["self_attn.in_proj_bias"][third]
    return found | {f"norm_{at}.{kind}": theirs[f"norm{at}.{kind}"] for at in (1, 2) for kind in ("weight", "bias")}


def torch_optimiser(problem: OptimiserStep) -> Work:
    """Return steps of torch.optim.AdamW, each of which continues the one before; the first is read."""
    import torch

    given, slopes = problem.arrays()
    weights = {name: torch.nn.Parameter(torch.from_numpy(w)) for name, w in given.items()}
    for name, w in weights.items():
        w.grad = torch.from_numpy(slopes[name])
    optimiser = torch.optim.AdamW(weights.values(), lr=1e-3)
    first: list[Any] = []

    def step() -> Any:
        optimiser.step()
        if not first:
            first.append({name: w.detach().numpy().copy() for name, w in weights.items()})
        return first[0]

    return Work(step, lambda found: found)
