"""A kernel whose results are right and whose memory grows with the square of the length."""

from mha_core.algebra.attention import attention_state as blockwise

from .dense import right as all_scores_at_once

__all__ = ["all_scores_at_once", "blockwise"]
