"""Long texts: only a beginning is tokenized, and the tokens are those of the whole text, for every kind of tokenizer."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from needs import Library
from properties import given, settings, st
from small_models import SENTENCES, trained_tokenizer

from mha_text.models.prefixes import beginning, splits_at_spaces
from mha_text.models.tokens import Tokenizer

tokenizers = Library("tokenizers")
LIMIT = 6
PIECES = [
    *("a bird sings", " in the tree", "bird  sings", " a ", " ein Baum"),
    *("a", "bird", "sings", "don't", "tree's", "I'LL", "Straße", "naïve", "e\u0301te\u0301", "İ", "ﬁn", "и", "ß"),
    *("가나", "कि", "कु", "حرف", "天気", "👩\u200d👧", "½", "1234567"),
    *("\u0600", "\u0d4e", "\u0301", "\ufc5e", "\u037a", "\u00b4"),
    *(".", "...", "''", "``", "-", "##ed", "▁", "▁▁", "Ġ", "\x00", "\u200b", "\ufeff"),
    *(" ", " ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85"),
    *("[CLS]", "[SEP]", "[UNK]", "[MASK]", "<s>", "</s>", "<mask>", "lone", "wide ", "{both}", "caps"),
]
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), min_size=20, max_size=90).map("".join)


def bpe(pre_tokenizer, normalizer=None):
    """Return a BPE of bytes or letters that is trained on the demo's sentences."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def changed(kind, normalizer=None, pre_tokenizer=None, added=()):
    """Return a trained tokenizer with other parts."""
    tokenizer = tokenizers.Tokenizer.from_str(trained_tokenizer(kind).to_str())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens([tokenizers.AddedToken(*each) if isinstance(each, tuple) else each for each in added])
    return tokenizer


def token(content, **options):
    return tokenizers.AddedToken(content, **options)


def table(key, value):
    """Return the normalizer of SentencePiece with a table of one row; its rows are a double array, as Darts writes it."""
    units, at = [0] * 256 * (len(key.encode()) + 2), 0
    for depth, byte in enumerate(key.encode(), start=1):
        units[at] |= (at ^ 256 * depth if at else 256) << 10  # where the children are
        at = 256 * depth ^ byte
        units[at] = byte
    leaf = 256 * (len(key.encode()) + 1)
    units[at] |= (at ^ leaf) << 10 | 1 << 8
    rows = np.array([4 * len(units), *units], "<u4").tobytes()
    return tokenizers.normalizers.Precompiled(rows + value.encode() + b"\0")


def shortened():
    """Yield tokenizers for which a beginning of a text is enough."""
    n, p = tokenizers.normalizers, tokenizers.pre_tokenizers
    spaces = n.Sequence([n.NFKC(), n.Replace(tokenizers.Regex(" {2,}"), " "), n.Replace("``", '"'), n.Strip()])
    yield "wordpiece", trained_tokenizer("wordpiece")
    yield "bytes", trained_tokenizer("bpe")
    yield "metaspace", trained_tokenizer("unigram")
    yield "metaspace of words", changed("unigram", spaces, p.Sequence([p.WhitespaceSplit(), p.Metaspace()]))
    yield "metaspace and spaces", changed("unigram", n.Sequence([n.Nmt(), spaces, n.Lowercase(), n.StripAccents()]))
    yield "runs of spaces", changed("unigram", n.Replace(tokenizers.Regex(" {2,}"), " "))
    yield "patterns", bpe(p.Sequence([p.Split(tokenizers.Regex(LLAMA), "isolated"), p.ByteLevel(use_regex=False)]), n.NFC())
    yield "digits first", bpe(p.Sequence([p.Punctuation(), p.Digits(), p.ByteLevel()]), n.Prepend("▁"))
    yield "a table", changed("unigram", table("b", "ß"))
    yield "a table with an accent after a space", changed("unigram", table(" \u0301", "x"))
    yield "words", changed("wordpiece", n.NFD(), p.Whitespace())
    added = [
        token("<mask>", lstrip=True),
        token("wide", rstrip=True),
        token("lone", single_word=True),
        token("caps", normalized=True),
    ]
    yield "added to bytes", changed("bpe", added=[*added, token("{both}", lstrip=True, rstrip=True), "  ", "   ", "\t\t"])
    yield "added to words", changed("wordpiece", added=[*added, token("{both}", lstrip=True, rstrip=True)])


def whole():
    """Yield tokenizers that look across spaces, or of which nothing is known."""
    n, p = tokenizers.normalizers, tokenizers.pre_tokenizers
    yield "no pre-tokenizer", bpe(None)
    yield "one piece", changed("unigram", pre_tokenizer=p.Metaspace(split=False))
    yield "spaces replaced first", bpe(p.Split(" ", "merged_with_previous"), n.Replace(" ", "▁"))
    yield "no space is left", changed("unigram", n.Replace(" ", "▁"))
    yield "spaces at the end of a piece", bpe(p.Split(" ", "merged_with_previous"))
    yield "another pattern", bpe(p.Split(tokenizers.Regex(r"\w+ \w+"), "isolated"))
    yield "bytes first", bpe(p.Sequence([p.ByteLevel(use_regex=False), p.Whitespace()]))
    yield "a table without spaces", changed("wordpiece", table(" ", "_"))
    yield "a table of letters to spaces", changed("bpe", table("d", " "))
    yield "a table of letters to nothing", changed("bpe", table("d", ""))
    yield "words replaced", changed("bpe", n.Replace("bird", "  "))
    yield "words replaced across a space", changed("bpe", n.Replace(tokenizers.Regex("s b"), "x"))
    yield "letters replaced by spaces", changed("bpe", n.Replace("a", "  "))
    yield "letters replaced by nothing", changed("bpe", n.Replace(tokenizers.Regex("[a-z]"), ""))
    yield "an added phrase", changed("wordpiece", added=["a bird"])
    yield "a phrase once it is normalized", changed("wordpiece", added=[token("a\u00a0bird", normalized=True)])


@cache
def read(make):
    """Return the tokenizers that a function yields, by their names, as a model has them with a limit of a few tokens."""
    every = dict(make())
    for library in every.values():
        library.enable_truncation(LIMIT)
    return {name: Tokenizer(library, Path("tokenizer.json"), LIMIT) for name, library in every.items()}


@settings(max_examples=60)
@given(texts, st.integers(0, 100))
def test_a_beginning_has_the_first_tokens_of_the_text(text, size):
    part = beginning(text, size)
    assert len(part) <= size or part == text
    for name, library in shortened_whole().items():
        first, every = (library.encode(each, add_special_tokens=False).ids for each in (part, text))
        assert first == every[: len(first)], (name, part, text)


@cache
def shortened_whole():
    return {name: library for name, library in shortened() if library.no_truncation() is None}


def same_tokens(tokenizer, texts, name=""):
    """Assert that the tokens are those that the library gives for whole texts."""
    encodings = tokenizer.tokenizer.encode_batch(texts)
    expected = [encoding.ids for encoding in encodings], sum(bool(encoding.overflowing) for encoding in encodings)
    assert tokenizer(texts) == expected, (name, texts)


@settings(max_examples=60)
@given(st.lists(texts, min_size=1, max_size=3))
def test_tokens_are_those_of_the_whole_text(texts):
    for name, tokenizer in {**read(shortened), **read(whole)}.items():
        same_tokens(tokenizer, texts, name)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=3))
def test_tokens_of_a_real_tokenizer_are_those_of_the_whole_text(minilm, texts):
    library = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    library.no_padding()
    for limit in (LIMIT, 64):
        library.enable_truncation(limit)
        same_tokens(Tokenizer(library, minilm / "tokenizer.json", limit), [*texts, " ".join(texts) * 4])


class Recorded:
    """A tokenizer that records how many characters it receives."""

    def __init__(self, library):
        self.library, self.received = library, 0

    def __getattr__(self, name):
        return getattr(self.library, name)

    def encode_batch(self, texts, **options):
        self.received += sum(map(len, texts))
        return self.library.encode_batch(texts, **options)


def received(tokenizer, text):
    """Return how many characters are tokenized of a text."""
    recorded = Recorded(tokenizer.tokenizer)
    same_tokens(replace(tokenizer, tokenizer=recorded), [text])
    return recorded.received - len(text)  # the whole text was tokenized once, to compare


LONG = " ".join(SENTENCES[:60])


def test_of_a_long_text_only_a_beginning_is_tokenized():
    for name, tokenizer in read(shortened).items():
        assert received(tokenizer, LONG) < 2000, name


def test_where_a_space_may_not_divide_the_text_is_tokenized_as_a_whole():
    for name, tokenizer in read(whole).items():
        assert received(tokenizer, LONG) == len(LONG), name
    library = changed("wordpiece")
    library.enable_truncation(LIMIT, direction="left")
    assert received(Tokenizer(library, Path("tokenizer.json"), LIMIT), LONG) == len(LONG)


def test_a_longer_beginning_is_tried_until_it_fills_the_limit_twice():
    tokenizer = read(shortened)["words"]
    assert received(tokenizer, " ".join(["unpronounceableness" * 20] * 40)) > 2000  # few tokens, of many letters
    assert received(tokenizer, "a b" + " " * 5000) > 5000
    assert received(tokenizer, "a" * 5000) == 5000  # there is no beginning


def test_a_part_of_which_nothing_is_known_is_not_cut():
    assert all(splits_at_spaces(tokenizer.tokenizer) for tokenizer in read(shortened).values())
    assert not any(splits_at_spaces(tokenizer.tokenizer) for tokenizer in read(whole).values())
