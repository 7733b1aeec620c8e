"""A language model with random weights that reads a prompt and writes after it, beside transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mha_text as mt
from mha_conformance.bench.limits import COPY, MATRIX, Limit
from mha_conformance.bench.timing import Work
from mha_text.models.generation import generated_tokens
from mha_text.models.sampling import Sampling

from .written import SEED, Written

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 1024, 3072, 16, 8, 128


@dataclass(frozen=True)
class Writing(Written):
    """The greedy tokens after a prompt, by a model of the shapes of Qwen3-0.6B with fewer layers."""

    prompt: int = 512
    new: int = 1
    dtype: str = "float32"
    layers: int = 8
    vocabulary: int = 151_936

    def small(self) -> Writing:
        """Return the same problem with a short prompt and fewer weights."""
        return replace(self, prompt=20, new=min(self.new, 4), layers=1, vocabulary=31_000)

    def ids(self) -> list[int]:
        """Return the tokens of the prompt."""
        return np.random.default_rng(SEED).integers(0, self.vocabulary, size=self.prompt).tolist()

    @property
    def limit(self) -> Limit:
        """The products of the prompt's tokens; where more tokens are written, the weights that are read for each of them."""
        of_layer = WIDTH * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS) + 3 * WIDTH * INNER
        if self.new > 1:
            weights = self.layers * of_layer + self.vocabulary * WIDTH
            return Limit(COPY, (4.0 if self.dtype == "float32" else 2.0) * (self.new - 1) * weights)
        pairs = self.prompt * (self.prompt + 1) // 2
        scores = 2 * HEADS * HEAD_DIM * pairs
        return Limit(MATRIX, 2.0 * (self.layers * (of_layer * self.prompt + scores) + self.vocabulary * WIDTH))

    def judge(self) -> Callable[[Any], None]:
        """Return a check of all tokens; the peer's are checked too.

        In float32 they are those of mha_core in float64. In bfloat16 each is among the likeliest after those before: its logit
        in float64 is less than half a standard deviation below the largest. A token at random is more than four below.
        """
        if self.dtype == "float32":
            exact = self._written("numpy", "float64").answer()
            return lambda answer: np.testing.assert_array_equal(answer, exact)
        model, ids = mt.LanguageModel.from_pretrained(self.folder, backend="numpy", dtype="float64").model, self.ids()

        def check(answer: Any) -> None:
            logits = model.logits(model.states([[*ids, *answer.tolist()]])[len(ids) - 1 : -1])
            below = logits.max(axis=1) - logits[np.arange(len(answer)), answer]
            assert (below < 0.5 * logits.std(axis=1)).all(), f"tokens are unlikely: logits are below the largest by {below}"

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of ``mha_text.LanguageModel`` on a backend."""
        return self._written(backend, self.dtype)

    def _written(self, backend: str, dtype: str) -> Work:
        model, ids = mt.LanguageModel.from_pretrained(self.folder, backend=backend, dtype=dtype), self.ids()

        def write() -> list[int]:
            steps = generated_tokens(model.model, model.backend, [ids], Sampling(), (), self.new, lambda text: False)
            return [token for ((_, token),) in steps]

        return Work(write, np.asarray)

    @property
    def name(self) -> str:
        """Name of its folder in build/."""
        return f"qwen3-{self.layers}-layers-{self.vocabulary}"

    def write(self, folder: Path) -> None:
        """Write the model; its tokenizer is not used."""
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
        sizes = {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": self.layers,
            "vocab_size": self.vocabulary,
        }
        tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
        config = Qwen3Config(**heads, **sizes, **tokens, max_position_embeddings=4096, tie_word_embeddings=True)
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            Qwen3ForCausalLM(config).save_pretrained(folder)
        self._copy(("tokenizer.json",), folder)


def generated(problem: Writing) -> Work:
    """Return the call of transformers' generate, greedy, with its static cache, not compiled."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(problem.folder, dtype=getattr(torch, problem.dtype)).eval()
    ids = torch.asarray([problem.ids()])
    options: dict[str, Any] = {
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
    }
    options |= {"cache_implementation": "static", "disable_compile": True, "max_new_tokens": problem.new}
    return Work(lambda: model.generate(ids, **options), lambda tokens: tokens[0, problem.prompt :].numpy())
