"""The errors of a corpus."""

from mha_core import MhaError

_LONGEST = 300  # characters


class CorpusError(MhaError, ValueError):
    """A corpus that cannot be read or written; the message names the file and what is wrong with it."""


def shortened(text: str) -> str:
    """Return text from a file as it can be part of a message: not too long, with escapes for what cannot be printed."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class BadText(CorpusError):
    """A row without a text that can be encoded; the message names the file and the row."""
