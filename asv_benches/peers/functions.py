"""Masks and scores written as functions, whose peer is torch's flex_attention, compiled, with the same functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.timing import Work, loaded, on

WINDOW, DOCUMENTS, SOFTCAP = 256, 8, 20.0
MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda batch, head, query, key: query >= key,
    "window": lambda batch, head, query, key: (query >= key) & (query - key < WINDOW),
    "documents": lambda batch, head, query, key, ids: (query >= key) & (ids[query] == ids[key]),
    "dilated": lambda batch, head, query, key: (query >= key) & ((query - key) % 2 == 0),
}
"""By kind; that of documents reads the number of each token's document."""
SCORES = ("alibi", "softcap")


@dataclass(frozen=True)
class FunctionAttention(Attention):
    """Attention with a mask or a score that is a function. The map of a mask's blocks is made in advance."""

    kind: str = "causal"
    built_in: bool = False
    """Whether ours is the option that this library has for the same, without a function."""

    @property
    def ids(self) -> np.ndarray:
        """The document of each token: eight of different lengths."""
        ends = np.cumsum(np.arange(1, DOCUMENTS + 1)) / sum(range(1, DOCUMENTS + 1))
        return np.searchsorted(ends, (np.arange(self.queries) + 0.5) / self.queries)

    @property
    def slopes(self) -> np.ndarray:
        """2^(-8 i / heads), as in ALiBi."""
        return 2.0 ** (-8 * np.arange(1, self.heads + 1) / self.heads)

    def seen(self, rows: np.ndarray) -> np.ndarray:
        keys = np.arange(self.queries)
        if self.kind in SCORES:
            return np.ones((len(rows), len(keys)), dtype=bool)
        return np.asarray(MASKS[self.kind](0, 0, rows[:, None], keys, *([self.ids] if self.kind == "documents" else [])))

    def exact_options(self, rows: np.ndarray) -> dict[str, Any]:
        if self.kind == "alibi":
            return {"bias": -self.slopes[:, None, None] * abs(rows[:, None] - np.arange(self.queries))}
        return {"softcap": SOFTCAP} if self.kind == "softcap" else {"allowed": self.seen(rows)}

    def _whole(self) -> None:
        return None

    @property
    def limit(self) -> Limit:
        """Two products over the visible pairs."""
        pairs = sum(int(self.seen(rows).sum()) for rows in np.array_split(np.arange(self.queries), max(1, self.queries // 512)))
        return Limit(MATRIX, 4 * self.batch * self.heads * pairs * self.head_dim)

    def ours(self, backend: str) -> Work:
        library = loaded(backend)
        arrays = [library.from_numpy(x) for x in self.arrays()]
        options = self._built_in() if self.built_in else self._functions(library)
        import mha_core as mha

        return on(library, lambda: mha.scaled_dot_product_attention(*arrays, **options))

    def _built_in(self) -> dict[str, Any]:
        import mha_core as mha

        lengths = np.bincount(self.ids).tolist()
        masks = {"causal": mha.causal(), "window": mha.window(WINDOW - 1, 0)}
        masks["documents"] = mha.causal() & mha.packed(lengths)
        if self.kind in masks:
            return {"mask": masks[self.kind]}
        return {"bias": mha.alibi(self.heads)} if self.kind == "alibi" else {"softcap": SOFTCAP}

    def _functions(self, library: Any) -> dict[str, Any]:
        import mha_core as mha

        xp, n = library.xp, self.queries
        if self.kind in MASKS:
            inside = [library.from_numpy(self.ids)] if self.kind == "documents" else []
            return {"mask": mha.block_mask(mha.mask_function(MASKS[self.kind], inside), n, n, backend=library.name)}
        if self.kind == "softcap":
            return {"bias": mha.score_function(lambda score, b, h, q, k: SOFTCAP * xp.tanh(score / SOFTCAP))}
        slopes = library.from_numpy(self.slopes.astype(np.float32))
        return {"bias": mha.score_function(lambda score, b, h, q, k, slopes: score - slopes[h] * abs(q - k), [slopes])}


def flex(problem: FunctionAttention) -> Work:
    """Return the call of torch's flex_attention, compiled, with its map of blocks made in advance."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    arrays = [torch.from_numpy(x) for x in problem.arrays()]
    ids, slopes, n = torch.from_numpy(problem.ids), torch.from_numpy(problem.slopes.astype(np.float32)), problem.queries
    options: dict[str, Any] = {}
    if problem.kind in MASKS:
        inside = [ids] if problem.kind == "documents" else []
        function = MASKS[problem.kind]
        options["block_mask"] = create_block_mask(lambda b, h, q, k: function(b, h, q, k, *inside), None, None, n, n, "cpu")
    elif problem.kind == "softcap":
        options["score_mod"] = lambda score, b, h, q, k: SOFTCAP * torch.tanh(score / SOFTCAP)
    else:
        options["score_mod"] = lambda score, b, h, q, k: score - slopes[h] * (q - k).abs()
    attend = torch.compile(flex_attention, fullgraph=True)
    return Work(lambda: attend(*arrays, **options), lambda out: out.numpy(), mode=torch.inference_mode)


def with_built_in(problem: FunctionAttention, backend: str) -> Work:
    """Return our call with the option that this library has for the same."""
    return replace(problem, built_in=True).ours(backend)
