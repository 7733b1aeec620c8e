"""Language models that score pairs by the logit of an answer, such as "yes", as the next token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mha_core import linear
from mha_core.shared import Array, backend_of

from .causal_model import build_text
from .classifier import Pool, TextScorer
from .family import Family
from .files import ModelError, WeightsFile, field, read_json


class Answers(NamedTuple):
    """The tokens whose logits make the score."""

    true_token_id: int
    false_token_id: int | None
    """None: the score is the logit of the other alone."""


@dataclass(frozen=True, eq=False)
class LogitScore(TextScorer):
    """The logit of a token after the text, or the difference of two, the log odds of one answer over the other.

    Source: Nogueira et al. 2020 (monoT5); as in sentence-transformers' LogitScore.
    """

    answers: Answers
    w_true: Array | None
    """(1, d), the token's row of the language model's head; None: the head's weights are those of ``text.words``."""
    w_false: Array | None
    """(1, d); None: as for ``w_true``, or there is one token only."""

    def logits(self, hidden: Array, pool: Pool) -> Array:
        last = pool("lasttoken", hidden)
        true, false = self.answers
        score = self._logit(last, true, self.w_true)
        return score if false is None else score - self._logit(last, false, self.w_false)

    def _logit(self, x: Array, token: int, row: Array | None) -> Array:
        w = self.text.words[token : token + 1, :] if row is None else row
        return linear(x, backend_of({"w": w}).xp.matrix_transpose(w), None)

    @property
    def build(self) -> Callable[..., LogitScore]:
        """The function that makes such a model of the arrays of a file."""
        return partial(build_logit_score, answers=self.answers)

    @property
    def num_labels(self) -> int:
        """The number of scores of a text."""
        return 1


def build_logit_score(
    folder: Path, family: Family, file: WeightsFile, make: Callable[[Any], Array], *, answers: Answers
) -> LogitScore:
    """Return the model that config.json describes, of arrays from ``file``."""
    text, head = build_text(folder, family, file, make)
    path = folder / "config.json"
    vocabulary = field(read_json(path), path, "vocab_size")
    for token in answers:
        if token is not None and not 0 <= token < vocabulary:
            raise ModelError(f"{path}: vocab_size is {vocabulary}, but the score is that of token {token}")
    if head is None:
        return LogitScore(text, answers, None, None)

    def row(token: int | None) -> Array | None:
        return None if token is None else make(head(slice(token, token + 1)))

    return LogitScore(text, answers, row(answers.true_token_id), row(answers.false_token_id))
