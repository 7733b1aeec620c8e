"""Keywords of sentence-transformers that mha lacks: each is refused with what to write instead."""

import inspect
import re
from functools import partial

import needs
import pytest

import mha_text as mt
from mha_text.models.hints import HINTS, PAIR_HINTS


def refused(function, name, hint):
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) has no {name}[:;] {re.escape(hint)}"):
        function(**{name: None})


def lacking(hints, *functions):
    """Yield each function with each keyword that has a hint and that the function lacks."""
    for function in functions:
        for name, hint in hints.items():
            if name not in inspect.signature(function).parameters:
                yield function, name, hint


def test_a_keyword_that_a_method_lacks_is_a_type_error_that_says_what_to_write(tiny, cross_folder):
    """from_pretrained refuses it before the model is read."""
    cross = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")
    cases = [
        *lacking(HINTS, tiny.encode, tiny.stream, mt.TextEncoder.from_pretrained),
        *lacking(PAIR_HINTS, cross.predict, cross.rank, mt.CrossEncoder.from_pretrained),
    ]
    assert len(cases) > 150
    for case in cases:
        refused(*case)
    refused(tiny.encode, "batch_size", "texts are packed by tokens, leave it out")
    refused(mt.TextEncoder.from_pretrained, "truncate_dim", "give it to encode, which takes it for each call")
    refused(mt.CrossEncoder.from_pretrained, "prompt", "give it to predict or rank, which take it for each call")
    for function in (tiny.encode_query, tiny.encode_document):
        with pytest.raises(TypeError, match=r"^encode\(\) has no normalize_embeddings: write normalize=True"):
            function(["a"], normalize_embeddings=True)


def test_a_keyword_that_nobody_has_is_a_type_error_with_those_there_are(tiny, cross_folder):
    refused(tiny.encode, "normalise", "its options are normalize, progress, prompt, prompt_name, ")
    cross = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")
    for call in (partial(cross.predict, [("a", "b")]), partial(cross.rank, "a", ["b"])):
        with pytest.raises(TypeError, match=r"\(\) has no progres; its options are .*progress; did you mean 'progress'"):
            call(progres=True)


@needs.installed("sentence_transformers", "transformers", "torch")
def test_every_keyword_of_sentence_transformers_is_ours_or_has_a_hint():
    from sentence_transformers import SentenceTransformer

    read = mt.TextEncoder.from_pretrained
    for reference, ours in ((SentenceTransformer.encode, mt.TextEncoder.encode), (SentenceTransformer, read)):
        names = {name for name, each in inspect.signature(reference).parameters.items() if each.kind is not each.VAR_KEYWORD}
        assert names - {"self"} <= {*inspect.signature(ours).parameters, *HINTS}
