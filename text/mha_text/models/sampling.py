"""The choice of the next token: the most likely one, or one drawn at random, by the same numbers on every backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mha_core import MhaError


class GenerationError(MhaError, ValueError):
    """A prompt, or a setting, with which no text can be written."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from logits. Raises GenerationError for numbers out of range, and for limits at temperature 0."""

    temperature: float = 0.0
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int | None = None
    """Only this many most likely tokens may be drawn."""
    top_p: float | None = None
    """Only the fewest most likely tokens whose probabilities add up to it (Holtzman et al. 2020)."""
    min_p: float | None = None
    """Only tokens whose probability is at least this part of the largest (Nguyen et al. 2024)."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise GenerationError(
                f"temperature is {self.temperature!r}; expected a number from 0, which takes the likeliest token"
            )
        if self.top_k is not None and (isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1):
            raise GenerationError(f"top_k is {self.top_k!r}; expected an int of at least 1")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0 < share <= 1:
                raise GenerationError(f"{name} is {share!r}; expected a number above 0, and at most 1")
        limits = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if limits and not self.temperature:
            raise GenerationError(f"{limits[0]} limits what is drawn, and temperature 0 draws nothing: give temperature=1.0")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise GenerationError(f"seed is {self.seed!r}; expected an int from 0 to 2^63 - 1")

    def token(self, logits: Any, text: int, place: int) -> int:
        """Return a token id for NumPy logits (vocabulary,). The number drawn depends on the seed, the text and its place alone.

        Limits apply in the order top_k, top_p, min_p, each to what the one before leaves. Raises GenerationError if the largest
        logit is NaN or infinity.
        """
        import numpy

        likeliest = int(logits.argmax())  # that of NaN, if there is one
        if not numpy.isfinite(logits[likeliest]):
            raise GenerationError(
                "the logits hold NaN or infinity: check the model's weights, or give a dtype with a wider range"
            )
        if not self.temperature:
            return likeliest
        logits = logits.astype(numpy.float64) / self.temperature
        order = numpy.argsort(-logits, kind="stable")[: self.top_k]
        weights = numpy.exp(logits[order] - logits[order[0]])
        if self.top_p is not None:
            before = (weights.cumsum() - weights) / weights.sum()
            weights = weights[before < self.top_p]
        if self.min_p is not None:
            weights = weights[weights >= self.min_p]
        generator = numpy.random.Generator(numpy.random.Philox(key=self.seed, counter=[0, place, text, 0]))
        at = numpy.searchsorted(weights.cumsum(), generator.random() * weights.sum(), side="right")
        return int(order[min(at, len(weights) - 1)])
