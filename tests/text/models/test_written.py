"""A text that grows by tokens: spaces after the prompt, letters of several tokens, and strings that stop it."""

import pytest
from needs import Library
from small_models import trained_tokenizer

from mha_text.models.written import Written

tokenizers = Library("tokenizers")
KINDS = ("wordpiece", "bpe", "unigram")


def fresh(kind):
    """Return a tokenizer that no other test has changed: transformers sets the truncation of the one that it is given."""
    tokenizer = tokenizers.Tokenizer.from_str(trained_tokenizer(kind).to_str())
    tokenizer.no_truncation()
    return tokenizer


def grow(kind, prompt, text, stop=()):
    """Return the text of tokens, and the pieces that were shown."""
    tokenizer = fresh(kind)
    before, whole = (tokenizer.encode(each, add_special_tokens=False).ids for each in (prompt, text))
    written, pieces = Written(tokenizer, before, stop), []
    for token in whole:
        if written.is_stopped:
            break
        written.add(token)
        pieces.append(written.piece())
    pieces.append(written.piece(last=True))
    return written, pieces


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_make_the_text_that_the_tokenizer_decodes(kind):
    tokenizer = fresh(kind)
    prompt, text = "the bird sings", "a bird in the tree"
    ids = [tokenizer.encode(each, add_special_tokens=False).ids for each in (prompt, text)]
    written, pieces = grow(kind, prompt, text)
    assert "".join(pieces) == written.text
    assert tokenizer.decode(ids[0]) + written.text == tokenizer.decode([*ids[0], *ids[1]])
    assert written.count == len(ids[1]) and len([piece for piece in pieces if piece]) > 2


def test_a_letter_of_several_tokens_is_shown_whole():
    _, pieces = grow("bpe", "the", "天é!")
    assert "".join(pieces) == "天é!" and "" in pieces
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["in the", "n t", "tree", "a"])
def test_a_text_stops_before_a_string_whose_beginning_is_never_shown(kind, stop):
    whole, _ = grow(kind, "the bird", "a bird in the tree")
    written, pieces = grow(kind, "the bird", "a bird in the tree", [stop, "absent"])
    assert written.is_stopped and "".join(pieces) == written.text == whole.text[: whole.text.index(stop)]


def test_what_might_have_stopped_the_text_is_shown_at_its_end():
    written, pieces = grow("bpe", "the", "a bird in", ["in the tree"])
    assert not written.is_stopped and "".join(pieces) == written.text and written.text.endswith("in")
    assert pieces[-1].endswith("in") and "in" not in "".join(pieces[:-1])
