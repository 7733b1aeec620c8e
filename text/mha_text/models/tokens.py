"""A model's tokenizer: from texts to token ids, with the tokenizers library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Self

from .chat import ChatTemplate
from .files import ModelError, one_of, read_json
from .prefixes import beginning, splits_at_spaces

_CHARACTERS = 16
"""Characters of a text that are tokenized first, for each token of the limit: in most texts they make three or four."""


@dataclass(frozen=True, slots=True)
class PairTokens:
    """The tokens of a pair of texts, special ones included."""

    ids: list[int]
    type_ids: list[int]
    """0 for tokens of the first text, 1 for those of the second, as the tokenizer says."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer. Truncation and padding set in tokenizer.json are ignored."""

    tokenizer: Any
    """A ``tokenizers.Tokenizer``."""
    path: Path
    """tokenizer.json."""
    max_seq_length: int
    """The maximum number of tokens of a text; the rest is cut, at its end unless truncation_side says left."""
    lower_case: bool = False
    """True if the model's files ask for texts in lower case, which the tokenizer then makes first."""
    gives_type_ids: bool = False
    """True if the model receives the type ids of pairs."""
    chat: ChatTemplate | None = None
    """The template of pairs; None: the tokenizer puts its special tokens around and between two texts."""

    @classmethod
    def read(
        cls, folder: Path, *, vocabulary: int, max_positions: int, pairs: bool = False, chat: ChatTemplate | None = None
    ) -> Self:
        """Read tokenizer.json, and the maximum length of a text, or of a pair of texts with ``pairs``.

        max_seq_length of sentence_bert_config.json takes precedence over model_max_length and ``max_positions``.
        """
        path, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
        tokenizer = read_library(path)
        with _named(f"{path} cannot be read by tokenizers"):
            around = tokenizer.encode("", "" if pairs else None, add_special_tokens=chat is None).ids
        ids = tokenizer.get_vocab().values()
        if not ids:
            raise ModelError(f"{path} has no tokens")
        last = max((*ids, *around))
        if last >= vocabulary:
            raise ModelError(f"{path} has token ids up to {last}, but the model has vectors for {vocabulary} tokens")
        sides = ("right", "left") if chat is None else ("right",)  # what a template puts after the texts is kept
        side = one_of(read_json(config, optional=True).get("truncation_side", "right"), sides, config, "truncation_side")
        settings = read_json(folder / "sentence_bert_config.json", optional=True)
        special = 0 if chat is not None else tokenizer.num_special_tokens_to_add(is_pair=pairs)
        limit = _limit(folder, settings, special, max_positions)
        tokenizer.enable_truncation(limit, direction=side)
        is_lower = settings.get("do_lower_case", False) is True
        if is_lower:
            _lower(tokenizer)
        return cls(tokenizer, path, limit, is_lower, pairs and _gives_type_ids(config), chat)

    def __call__(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the ids of each text with its special tokens, and the number of texts that were cut."""
        encodings, cut = self._encode_beginnings(texts)
        return [encoding.ids for encoding in encodings], cut

    def pairs(self, pairs: Sequence[tuple[str, str]], prompt: str = "") -> tuple[list[PairTokens], int]:
        """Return the tokens of each pair of texts, and the number of pairs that were cut.

        ``prompt`` is put in front of the first text, or is the system message of a chat. The longer text is cut first. A chat
        is cut as a whole; it still ends in what its template puts after the texts, such as the beginning of the answer.
        """
        if self.chat is not None:
            return self._chats(self.chat, pairs, prompt)
        encodings, cut = self._encode([(prompt + a, b) for a, b in pairs])
        return [PairTokens(encoding.ids, encoding.type_ids) for encoding in encodings], cut

    def of_chat(self, chat: str) -> tuple[list[int], int]:
        """Return the ids of a dialogue as its template shows it, special tokens included, and 1 if they were cut, else 0."""
        (encoding,), cut = self._encode_beginnings([chat], special=False)
        return encoding.ids, cut

    def _chats(self, chat: ChatTemplate, pairs: Sequence[tuple[str, str]], prompt: str) -> tuple[list[PairTokens], int]:
        encodings, cut = self._encode_beginnings([chat(*pair, prompt) for pair in pairs], special=False)
        suffix = self._suffix(chat, prompt)[-self.max_seq_length :] if cut else []
        chats = []
        for encoding in encodings:
            ids = encoding.ids
            if encoding.overflowing and suffix:
                ids[-len(suffix) :] = suffix
            chats.append(PairTokens(ids, encoding.type_ids))
        return chats, cut

    def _suffix(self, chat: ChatTemplate, prompt: str) -> list[int]:
        """Return the tokens that the template puts after the texts: those in which chats of different texts end alike."""
        encodings, _ = self._encode([chat(text, text, prompt) for text in ("0", "1 2 3 4")], special=False)
        short, long = ([*chain(each.ids, *(more.ids for more in each.overflowing))] for each in encodings)
        alike = len([*takewhile(lambda ends: ends[0] == ends[1], zip(reversed(short), reversed(long), strict=False))])
        return short[len(short) - alike :] if alike < min(len(short), len(long)) else []

    def _encode_beginnings(self, texts: Sequence[str], *, special: bool = True) -> tuple[list[Any], int]:
        """Return the encodings of texts, and how many were cut. Only a beginning of a long text is tokenized, if it is enough.

        It is enough if its tokens fill the limit more than twice; otherwise a longer one is tried, and in the end the text.
        """
        encodings: dict[int, Any] = {}
        rest, size = [*range(len(texts))], _CHARACTERS * self.max_seq_length
        while rest:
            parts = [self._beginning(texts[at], size) for at in rest]
            encodings.update(zip(rest, self._encode(parts, special=special)[0], strict=True))
            beginnings = (at for at, part in zip(rest, parts, strict=True) if len(part) < len(texts[at]))
            rest, size = [at for at in beginnings if len(encodings[at].overflowing) < 2], 4 * size
        every = [encodings[at] for at in range(len(texts))]
        return every, sum(bool(encoding.overflowing) for encoding in every)

    def _beginning(self, text: str, size: int) -> str:
        return beginning(text, size) if len(text) > size and self._may_be_shortened else text

    @cached_property
    def _may_be_shortened(self) -> bool:
        return self.tokenizer.truncation["direction"] == "right" and splits_at_spaces(self.tokenizer)

    def _encode(self, inputs: list[Any], *, special: bool = True) -> tuple[list[Any], int]:
        with _named(f"{self.path} cannot be used by tokenizers"):  # such as a word outside of a vocabulary without [UNK]
            encodings = self.tokenizer.encode_batch(inputs, add_special_tokens=special)
        return encodings, sum(bool(encoding.overflowing) for encoding in encodings)

    def length_of_prompt(self, prompt: str) -> int:
        """Return the number of tokens with which a text begins that has a prompt: [CLS] and its own, but no [SEP]."""
        (ids,), _ = self([prompt])
        closing = self.tokenizer.encode(prompt).special_tokens_mask[-1:]
        return len(ids) - sum(closing)

    @property
    def special_tokens(self) -> frozenset[str]:
        """The tokens put around every text, such as [CLS]; not [UNK] or [MASK], which replace a part of the text."""
        added = {token.content for token in self.tokenizer.get_added_tokens_decoder().values() if token.special}
        return frozenset(added.intersection(self.tokenizer.encode("").tokens))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of ids, spelled as in the vocabulary; tokens of a byte-level vocabulary (RoBERTa) as in the text.

        In the latter a space is ▁, as in SentencePiece's, and a byte that is not a whole letter is written as in Python: \\xc3.
        """
        from tokenizers import decoders

        spelled = [self.tokenizer.id_to_token(token) for token in ids]
        if not isinstance(self.tokenizer.decoder, decoders.ByteLevel):
            return spelled
        added = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}  # spelled as they are: <mask>
        return [token if token in added else _letters(token) for token in spelled]


def read_library(path: Path) -> Any:
    """Return the ``tokenizers.Tokenizer`` of tokenizer.json, without the padding that it may ask for."""
    from tokenizers import Tokenizer as Library

    read_json(path)
    with _named(f"{path} cannot be read by tokenizers"):
        tokenizer = Library.from_file(str(path))
    tokenizer.no_padding()
    return tokenizer


def check_text(name: str, text: object) -> None:
    """Raise TypeError if ``text`` is not a string, UnicodeError if it cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnicodeError(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from error


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter: a byte's letter is its Latin-1 character if visible, otherwise one from chr(256) on."""
    visible = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


_BYTES = _byte_letters()  # of byte-level BPE (Radford et al. 2019, section 2.2)


def _letters(token: str) -> str:
    if not _BYTES.keys() >= set(token):
        return token  # not spelled in bytes, whatever the decoder says
    text = bytes(_BYTES[letter] for letter in token).decode(errors="backslashreplace").replace(" ", "▁")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Raise what the library raises as a ModelError: plain Exception, and BaseException where its own code fails."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as cause:
        first_line = str(cause).partition("\n")[0]
        raise ModelError(f"{what}: {first_line}") from cause


def _lower(tokenizer: Any) -> None:
    """Make a tokenizer lower-case texts first, but not the tokens that were added to its vocabulary, such as [SEP]."""
    from tokenizers.normalizers import Lowercase, Sequence

    normalizer = tokenizer.normalizer
    is_list = isinstance(normalizer, Sequence)
    steps: list[Any] = [] if normalizer is None else [*normalizer] if is_list else [normalizer]
    if not any(isinstance(step, Lowercase) for step in steps):
        tokenizer.normalizer = Sequence([Lowercase(), *steps])


def _limit(folder: Path, settings: dict[str, Any], special: int, max_positions: int) -> int:
    """Return the first that is given: max_seq_length, model_max_length (at most ``max_positions``), ``max_positions``."""
    path, name, limit = folder / "sentence_bert_config.json", "max_seq_length", settings.get("max_seq_length")
    if limit is None:
        path, name = folder / "tokenizer_config.json", "model_max_length"
        limit = read_json(path, optional=True).get(name)
        limit = max_positions if limit is None else min(limit, max_positions) if isinstance(limit, int | float) else limit
    least = max(1, special)
    if isinstance(limit, bool) or not isinstance(limit, int) or not least <= limit <= max_positions:
        raise ModelError(f"{path}: {name} is {limit!r}; expected {least} to {max_positions}")
    return limit


def _gives_type_ids(path: Path) -> bool:
    """Return True if a model receives type ids, by the rules of transformers 5.

    model_input_names takes precedence. Without it, the tokenizers of BERT and ELECTRA give type ids, and those without a class
    of their own do not.
    """
    config = read_json(path, optional=True)
    named = config.get("model_input_names")
    if isinstance(named, list):
        return "token_type_ids" in named
    return config.get("tokenizer_class") not in ("TokenizersBackend", "PreTrainedTokenizerFast")
