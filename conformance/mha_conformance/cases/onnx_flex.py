"""ONNX's operator FlexAttention, of its preview domain, computed by the public API.

Its subgraphs map all scores, or all weights, to as many others. ONNX's reference evaluator runs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mha_core as mha
from mha_core.shared import dtype_name

from ..backend import BackendUnderTest


def flex_attention(
    backend: BackendUnderTest,
    x: dict[str, Any],
    *,
    scale: float | None = None,
    score_mod: Any = None,
    prob_mod: Any = None,
    softmax_precision: int | None = None,  # never below float32 here
) -> list[Any]:
    """Return Y. ``prob_mod`` changes the weights, so with it all of them are computed."""
    query, key, value = x["Q"], x["K"], x["V"]
    options: dict[str, Any] = {"scale": scale, "query_offset": 0}
    if score_mod is not None:
        options["bias"] = mha.score_function(_ScoreGraph(backend, score_mod, (*query.shape[:-1], key.shape[-2])))
    if prob_mod is None:
        return [mha.scaled_dot_product_attention(query, key, value, **options)]
    weights = mha.attention_weights(query, key, **options)
    changed = backend.array(_run(prob_mod, backend.numpy(weights)), dtype_name(weights.dtype))
    groups = query.shape[-3] // value.shape[-3]
    return [backend.xp.matmul(changed, backend.xp.repeat(value, groups, axis=-3))]


class _ScoreGraph:
    """A subgraph of all scores, (B, H, L, S), as a function of some of them: the others are 0 meanwhile."""

    def __init__(self, backend: BackendUnderTest, graph: Any, shape: tuple[int, ...]) -> None:
        self.backend, self.graph, self.shape = backend, graph, shape

    def __call__(self, score: Any, *indices: Any) -> Any:
        some = self.backend.numpy(score)
        at = np.broadcast_arrays(some, *(self.backend.numpy(index) for index in indices))[1:]
        scores = np.zeros(self.shape, dtype=some.dtype)
        scores[tuple(at)] = some
        return self.backend.array(_run(self.graph, scores)[tuple(at)], dtype_name(score.dtype))


def _run(graph: Any, x: np.ndarray) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    (result,) = ReferenceEvaluator(graph, opsets={"": 26}).run(None, {graph.input[0].name: x})
    return np.asarray(result)
