"""The errors of a corpus."""

from mha_core import MhaError


class CorpusError(MhaError, ValueError):
    """A corpus that cannot be read or written; the message names the file and what is wrong with it."""


class BadText(CorpusError):
    """A row without a text that can be encoded; the message names the file and the row."""
