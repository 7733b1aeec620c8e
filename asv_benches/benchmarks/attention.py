"""Attention on every installed backend: prefill, causal, and one query against a long cache."""

from __future__ import annotations

import math
import time
from importlib.metadata import entry_points

BACKENDS = sorted(entry.name for entry in entry_points(group="mha_core.plugins"))
CASES = {
    "prefill 8x8x512x64": ((8, 8, 512, 64), 512, False),
    "causal 8x8x512x64": ((8, 8, 512, 64), 512, True),
    "decode 1x8x1x64, 8192 keys": ((1, 8, 1, 64), 8192, False),
}
SAMPLE = 0.01  # seconds; shorter samples rank backends wrongly


class Attention:
    """Checked against a plain float64 evaluation before it is timed."""

    version = "1"
    timeout = 300.0  # seconds; a busy machine is no failure
    params = (BACKENDS, list(CASES))
    param_names = ("backend", "case")

    def setup(self, backend: str, case: str) -> None:
        if hasattr(self, "call"):
            return
        import numpy as np

        import mha_core as mha
        from mha_core.dispatch.backend import load
        from mha_core.dispatch.errors import BackendUnavailable

        try:
            loaded = load(backend)
        except BackendUnavailable as error:
            raise NotImplementedError(str(error)) from error
        shape, keys, causal = CASES[case]
        rng = np.random.default_rng(0)
        query = rng.normal(size=shape).astype(np.float32)
        key, value = rng.normal(size=(2, *shape[:2], keys, shape[3])).astype(np.float32)
        arrays = [loaded.from_numpy(x) for x in (query, key, value)]
        mask = mha.causal() if causal else None
        wait = loaded.record.synchronize or (lambda: None)

        def call():
            out = mha.scaled_dot_product_attention(*arrays, mask=mask)
            wait()
            return out

        head = (0, 0)
        scores = query[head].astype(np.float64) @ key[head].T / math.sqrt(shape[3])
        scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf) if causal else scores
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        expected = weights / weights.sum(axis=-1, keepdims=True) @ value[head]
        np.testing.assert_allclose(loaded.to_numpy(call())[head], expected, atol=1e-5)
        start = time.perf_counter()
        call()
        self.number = max(1, round(SAMPLE / (time.perf_counter() - start)))
        self.call = call

    def time_attention(self, backend: str, case: str) -> None:
        self.call()

    def peakmem_attention(self, backend: str, case: str) -> None:
        self.call()
