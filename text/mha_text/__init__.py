"""Texts for mha-core: text encoders, cross-encoders and language models, corpora and semantic search, on any backend.

Importing this package imports no array library; the functions on corpora are imported when they are first used.
"""

import importlib
import sys
import typing

from .corpus.errors import BadText, CorpusError
from .models.batches import TruncationWarning
from .models.cross_encoder import CrossEncoder, RankedDocument
from .models.files import ModelError, ModelNotFound
from .models.hints import FUNCTIONS
from .models.language_model import LanguageModel
from .models.quantize import quantize_embeddings
from .models.sampling import GenerationError
from .models.text_encoder import TextEncoder
from .models.written import TextStream

if typing.TYPE_CHECKING:
    from .corpus.encode import CorpusReport, encode_corpus
    from .corpus.search import Hit, semantic_search

__version__ = "0.1.0"

__all__ = [
    "TextEncoder",
    "CrossEncoder",
    "RankedDocument",
    "LanguageModel",
    "TextStream",
    "GenerationError",
    "TruncationWarning",
    "quantize_embeddings",
    "encode_corpus",
    "CorpusReport",
    "semantic_search",
    "Hit",
    "ModelError",
    "ModelNotFound",
    "CorpusError",
    "BadText",
]


_CORPUS = {"CorpusReport": "encode", "encode_corpus": "encode", "Hit": "search", "semantic_search": "search"}


def __getattr__(name: str) -> typing.Any:
    """Import the functions on corpora when they are first used, and say what to write for names of sentence-transformers."""
    if name in _CORPUS:
        return getattr(importlib.import_module(f".corpus.{_CORPUS[name]}", __name__), name)
    hint = f": {FUNCTIONS[name]}" if name in FUNCTIONS else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
