"""Beginnings of long texts that have the first tokens of the whole, so that the rest need not be tokenized.

Tokens are computed in four steps: tokens that were added to the vocabulary are taken out, a normalizer rewrites what is between
them, a pre-tokenizer splits that into pieces, and the model makes tokens of each piece by itself. If none of the first three
looks across a space between two letters, the text before such a space has the first tokens of the whole text.
"""

from __future__ import annotations

import json
import re
from string import punctuation
from typing import Any

_ALPHABETS = "AZ az ÀÖ Øö øÿ Āſ ΓΠ ΣΩ αω Ая את ءغ في अह 가힣"
"""Letters of many alphabets, by first and last. No grapheme joins one to a space (rule GB9b of Unicode Standard Annex 29)."""
_LETTERS = [chr(code) for ends in _ALPHABETS.split() for code in range(ord(ends[0]), ord(ends[1]) + 1)]
_LETTER = f"[{''.join('-'.join(ends) for ends in _ALPHABETS.split())}]"
_BEFORE_SPACE = re.compile(f"(.*{_LETTER}) (?={_LETTER})", re.DOTALL)  # the last such space, since .* is greedy
_LOCAL = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Strip", "StripAccents"}
)
"""Normalizers that rewrite characters or graphemes one by one, or the ends of a text. A space composes with nothing before it
(Unicode Standard Annex 15), so the forms of Unicode do not look across it."""
_SPLITTERS = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
"""Pre-tokenizers that split at every space."""
_NOT_AT_SPACES = frozenset({"Digits", "Punctuation"})
"""Pre-tokenizers that split elsewhere, and leave a space between letters to the next one."""
_PATTERNS = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
)
"""The patterns of Qwen 2 and 3, and of Llama 3 and EuroBERT: no match has a letter and then a space."""


def beginning(text: str, size: int) -> str:
    """Return the first ``size`` characters of a text, up to the last space between letters; without one, the whole text."""
    match = _BEFORE_SPACE.match(text, 0, size + 2)
    return text if match is None else match[1]


def splits_at_spaces(tokenizer: Any) -> bool:
    """Return True if ``beginning`` of any text has the first tokens of the text, for a ``tokenizers.Tokenizer``.

    False for kinds of normalizers and pre-tokenizers of which this is not known, and for none at all of the latter.
    """
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if splitter is None or not _splits(_fields(splitter)) or not (normalizer is None or _is_local(_fields(normalizer))):
        return False
    normalize = str if normalizer is None else normalizer.normalize_str
    letters_stay = len(normalize(" ".join(_LETTERS)).split()) == len(_LETTERS)  # and so does the space, whatever a table says
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return letters_stay and not any(re.search(r"\S\s", form) for text in added for form in (text, normalize(text)))


def _fields(component: Any) -> dict[str, Any]:
    """Return the fields of a normalizer or a pre-tokenizer, as tokenizer.json has them."""
    return dict(json.loads(component.__getstate__()))


def _is_local(normalizer: dict[str, Any]) -> bool:
    """Return True if a normalizer does not look across a space between letters."""
    match normalizer:
        case {"type": "Sequence", "normalizers": steps}:
            return all(map(_is_local, steps))
        case {"type": "Replace", "pattern": {"String": pattern}}:
            return set(pattern) <= set(punctuation)
        case {"type": "Replace", "pattern": {"Regex": pattern}}:
            return pattern == " {2,}"
    return normalizer["type"] in _LOCAL


def _splits(pre_tokenizer: dict[str, Any]) -> bool:
    """Return True if a pre-tokenizer begins a piece at every space between letters, or after it."""
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": steps}:
            first = next((step for step in steps if step["type"] not in _NOT_AT_SPACES), None)
            return first is not None and _splits(first)  # the steps after it see one piece at a time
        case {"type": "Metaspace", "split": True} | {"type": "ByteLevel", "use_regex": True}:
            return True
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return pattern in _PATTERNS
    return pre_tokenizer["type"] in _SPLITTERS
