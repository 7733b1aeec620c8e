"""Names of sentence-transformers that mha lacks, keywords and others: each is refused with what to write instead."""

import inspect
import re
from functools import partial
from pathlib import Path

import needs
import pytest

import mha_text as mt
from mha_text.models.hints import ATTRIBUTES, FUNCTIONS, HINTS, PAIR_HINTS


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


def test_the_path_of_a_model_is_for_from_pretrained(tmp_path):
    for kind in (mt.TextEncoder, mt.CrossEncoder):
        for call in (lambda kind=kind: kind("a/model", device="cuda"), lambda kind=kind: kind(model_name_or_path="a/model")):
            with pytest.raises(TypeError) as caught:
                call()
            name = kind.__name__
            expected = f"{name}() takes the parts of a model, not its path: write {name}.from_pretrained('a/model')"
            assert str(caught.value) == expected
        with pytest.raises(TypeError, match=r"write \w+\.from_pretrained\('a/model'\)"):
            kind(Path("a/model"))
        with pytest.raises(TypeError, match=r"missing .* required positional arguments: 'model'"):
            kind()


def test_an_attribute_of_sentence_transformers_says_what_to_write(tiny, cross_folder):
    assert {"get_sentence_embedding_dimension", "save", "tokenize", "encode_multi_process", "fit", "to"} <= ATTRIBUTES.keys()
    cross = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")
    for model in (tiny, cross):
        for name, hint in ATTRIBUTES.items():
            with pytest.raises(AttributeError) as caught:
                getattr(model, name)
            assert str(caught.value) == f"{type(model).__name__} has no {name}: {hint}"
        with pytest.raises(AttributeError, match="object has no attribute 'nothing'"):
            _ = model.nothing
    assert ATTRIBUTES["get_sentence_embedding_dimension"] == "write dim, without parentheses" and tiny.dim == 8
    assert hasattr(tiny, "save_pretrained") and not hasattr(tiny, "save")
    for name, value in {"prompts": {"query": "", "document": ""}, "default_prompt_name": None, "truncate_dim": None}.items():
        assert ATTRIBUTES[name] == f"write encoder.settings.{name}" and getattr(tiny.settings, name) == value


def test_a_function_of_sentence_transformers_says_what_to_write():
    assert {"SentenceTransformer", "paraphrase_mining", "cos_sim", "util", "losses"} <= FUNCTIONS.keys()
    for name, hint in FUNCTIONS.items():
        with pytest.raises(AttributeError) as caught:
            getattr(mt, name)
        assert str(caught.value) == f"module 'mha_text' has no attribute {name!r}: {hint}"
    with pytest.raises(AttributeError, match=r"for cos_sim write encoder\.similarity"):
        mt.util.cos_sim([1.0], [1.0])
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = mt.nothing


def test_what_is_not_texts_is_refused_by_name(tiny, cross_folder):
    cross = mt.CrossEncoder.from_pretrained(cross_folder("bert"), backend="numpy")
    strings = "expected a list of strings: write"
    for wrong, what in ((None, "NoneType"), (3, "int"), (b"a", "one bytes")):
        for call in (tiny.encode, tiny.encode_query, tiny, tiny.stream):
            with pytest.raises(TypeError, match=rf"^texts is {what}; {strings} \[text\]$"):
                call(wrong)
        with pytest.raises(TypeError, match=rf"^documents is {what}; {strings} \[document\]$"):
            cross.rank("a", wrong)
        with pytest.raises(TypeError, match=rf"^pairs is {what}; expected pairs of strings: write \[\(query, document\)\]$"):
            cross.predict(wrong)


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


@needs.installed("sentence_transformers", "transformers", "torch")
def test_hints_are_for_names_that_sentence_transformers_has():
    import sentence_transformers

    kinds = (sentence_transformers.SentenceTransformer, sentence_transformers.CrossEncoder)
    fields = {"prompts", "default_prompt_name", "truncate_dim"}  # set by __init__
    assert {name for name in ATTRIBUTES if not any(hasattr(kind, name) for kind in kinds)} <= fields
    places = (sentence_transformers, sentence_transformers.util, sentence_transformers.sentence_transformer.modules)
    assert {name for name in FUNCTIONS if not any(hasattr(place, name) for place in places)} <= {"losses"}
