"""Keywords of sentence-transformers that mha lacks: each is refused with what to write instead."""

import inspect
import re

import needs
import pytest

import mha_text as mt
from mha_text.models.hints import HINTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 32}, "encode() has no batch_size: texts are packed by tokens, leave it out"),
        ({"normalize_embeddings": True}, "encode() has no normalize_embeddings: write normalize=True"),
        ({"show_progress_bar": False}, "encode() has no show_progress_bar: write progress=True or progress=False"),
        ({"convert_to_tensor": True}, "encode() has no convert_to_tensor: vectors are arrays of the encoder's backend"),
        ({"device": "cpu"}, "encode() has no device: give it to from_pretrained"),
        ({"output_value": "token_embeddings"}, 'encode() has no output_value: write output="tokens" for token embeddings'),
        ({"normalise": True}, "encode() has no normalise; its options are normalize, progress, prompt, prompt_name, "),
    ],
)
def test_a_keyword_that_encode_lacks_is_a_type_error_that_says_what_to_write(tiny, options, message):
    for call in (tiny.encode, tiny.encode_query, tiny.encode_document):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            call(["a"], **options)
    with pytest.raises(TypeError, match=r"stream\(\) has no"):
        tiny.stream(["a"], **options)


def test_the_first_argument_has_no_name_of_theirs(tiny, tiny_model):
    with pytest.raises(TypeError, match=r"encode\(\) has no sentences: write it first, without a name"):
        tiny.encode(sentences=["a"])
    with pytest.raises(TypeError, match=r"from_pretrained\(\) has no model_name_or_path: write it first"):
        mt.TextEncoder.from_pretrained(model_name_or_path=tiny_model)


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (mt.TextEncoder, "model_kwargs", "write dtype="),
        (mt.TextEncoder, "trust_remote_code", "no code of a repository is ever run, leave it out"),
        (mt.TextEncoder, "truncate_dim", "give it to encode"),
        (mt.TextEncoder, "similarity_fn_name", "write encoder.similarity"),
        (mt.TextEncoder, "prompts", "they are read from config_sentence_transformers.json"),
        (mt.CrossEncoder, "max_length", "write max_seq_length into "),
        (mt.CrossEncoder, "prompt", "give it to predict or rank, which take it for each call"),
    ],
)
def test_a_keyword_that_from_pretrained_lacks_is_refused_before_the_model_is_read(kind, name, hint):
    with pytest.raises(TypeError, match=rf"^from_pretrained\(\) has no {name}: {hint}"):
        kind.from_pretrained("no/such/directory", **{name: None})


@needs.installed("sentence_transformers", "transformers", "torch")
def test_every_keyword_of_sentence_transformers_is_ours_or_has_a_hint():
    from sentence_transformers import SentenceTransformer

    read = mt.TextEncoder.from_pretrained
    for reference, ours in ((SentenceTransformer.encode, mt.TextEncoder.encode), (SentenceTransformer, read)):
        names = {name for name, each in inspect.signature(reference).parameters.items() if each.kind is not each.VAR_KEYWORD}
        assert names - {"self"} <= {*inspect.signature(ours).parameters, *HINTS}
