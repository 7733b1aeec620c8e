"""Training problems and torch's work for them: a step of an encoder layer, and one of the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_conformance.bench.layer import D_MODEL, NUM_HEADS, SEED, Layer
from mha_conformance.bench.limits import COPY, MATRIX, Limit
from mha_conformance.bench.timing import Work, loaded
from mha_conformance.oracle.layers import Layers
from mha_conformance.oracle.tolerance import UNIT_ROUNDOFF, assert_within

from .layer import torch_layer

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
        return gradient_check(oracle.gradients(out, self.d_out().astype(np.float64), of=arrays), ROUNDINGS, least=1.0)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core's layer and of its pullback on a backend."""
        x, layer = self.arrays()
        x, layer, d_out = loaded(backend).from_numpy(x), layer.to(backend), loaded(backend).from_numpy(self.d_out())
        return pulled_back(backend, layer, x, d_out, lambda d_layer, d_x: d_layer.arrays() | {"x": d_x})


def gradient_check(exact: Mapping[str, np.ndarray], roundings: float, *, least: float = 0.0) -> Callable[[Any], None]:
    """Return a check of gradients by name; ``roundings`` of the greatest number in each, or of ``least``, are allowed."""

    def check(answer: Mapping[str, np.ndarray]) -> None:
        missing = sorted(exact.keys() - answer.keys())
        assert not missing, f"there are no gradients of {', '.join(missing)}"
        for name, gradient in answer.items():
            bound = roundings * UNIT_ROUNDOFF["float32"] * max(np.abs(exact[name]).max(), least)
            assert_within(f"d_{name}", gradient, exact[name], np.full(exact[name].shape, bound))

    return check


def pulled_back(backend: str, function: Any, x: Any, d_out: Any, named: Callable[..., Mapping[str, Any]]) -> Work:
    """Return the call of a layer or model of mha_core on x and of its pullback; ``named`` gives names to the gradients."""
    import mha_core as mha

    library = loaded(backend)

    def step() -> Any:
        _, pullback = mha.vjp(function, x)
        return pullback(d_out)

    def read(gradients: Any) -> dict[str, np.ndarray]:
        return {name: library.to_numpy(gradient) for name, gradient in named(*gradients).items()}

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

        library, optimiser = loaded(backend), mha.AdamW()
        weights, gradients = ({name: library.from_numpy(x) for name, x in arrays.items()} for arrays in self.arrays())
        now = [weights, optimiser.init(weights)]

        def step() -> dict[str, Any]:
            now[:] = optimiser.step(now[0], gradients, now[1])
            return now[0]

        return _continued(step, library.to_numpy, library.record.synchronize)


def _continued(
    step: Callable[[], Mapping[str, Any]], read: Callable[[Any], Any], wait: Callable[[], None] | None = None
) -> Work:
    """Return the work of steps that change weights, each of which continues the one before; the first is read."""
    first: list[dict[str, np.ndarray]] = []

    def call() -> dict[str, np.ndarray]:
        weights = step()
        if not first:
            first.append({name: read(w).copy() for name, w in weights.items()})
        return first[0]

    return Work(call, lambda answer: answer, wait)


def layer_step(problem: LayerStep) -> Work:
    """Return the call of nn.TransformerEncoderLayer and of its gradients, read under the names of ours."""
    import torch

    import mha_core as mha

    numbers, layer = problem.arrays()
    module, d_out = torch_layer(layer), torch.from_numpy(problem.d_out())
    x, weights = torch.from_numpy(numbers).requires_grad_(), dict(module.named_parameters())
    settings = {"num_heads": NUM_HEADS, "activation": problem.activation, "norm_first": False}

    def step() -> Any:
        return torch.autograd.grad(module(x), [x, *weights.values()], d_out)

    def read(gradients: Any) -> dict[str, np.ndarray]:
        d_x, *d_weights = gradients
        d_layer = mha.EncoderLayer.from_torch(dict(zip(weights, d_weights, strict=True)), **settings)
        return {name: d.numpy() for name, d in (d_layer.arrays() | {"x": d_x}).items()}

    return Work(step, read)


def torch_optimiser(problem: OptimiserStep) -> Work:
    """Return steps of torch.optim.AdamW, each of which continues the one before; the first is read."""
    import torch

    numbers, gradients = problem.arrays()
    weights = {name: torch.nn.Parameter(torch.from_numpy(w)) for name, w in numbers.items()}
    for name, w in weights.items():
        w.grad = torch.from_numpy(gradients[name])
    optimiser = torch.optim.AdamW(weights.values(), lr=1e-3)

    def step() -> dict[str, Any]:
        optimiser.step()
        return weights

    return _continued(step, lambda w: w.detach().numpy())
