"""What to write in place of keywords of sentence-transformers that have another form here, or are not needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from ..dispatch.errors import did_you_mean

_FIRST = "write it first, without a name"
_BEFORE = "give it to from_pretrained"
_PER_CALL = "give it to encode, which takes it for each call"
_CACHE = "download the repository with huggingface_hub, and give its directory"

HINTS: Mapping[str, str] = {
    # encode
    "sentences": _FIRST,
    "inputs": _FIRST,
    "batch_size": "texts are packed by tokens, leave it out",
    "show_progress_bar": "write progress=True or progress=False",
    "output_value": 'write output="tokens" for token embeddings',
    "convert_to_numpy": "vectors are arrays of the encoder's backend: leave it out, or read the model with backend='numpy'",
    "convert_to_tensor": "vectors are arrays of the encoder's backend: leave it out, or read the model with backend='torch'",
    "normalize_embeddings": "write normalize=True",
    "device": _BEFORE,
    "pool": "write encode_corpus, which encodes files in many processes",
    "chunk_size": "write encode_corpus, which encodes files in many processes",
    "ranges": "write quantize_embeddings(encoder.encode(texts), precision, ranges=...)",
    "calibration_embeddings": "write quantize_embeddings(encoder.encode(texts), precision, calibration_embeddings=...)",
    "task": "write encode_query or encode_document",
    # from_pretrained
    "model_name_or_path": _FIRST,
    "modules": "layers are read from a directory with modules.json",
    "prompts": "they are read from config_sentence_transformers.json; give encode a prompt=",
    "default_prompt_name": "it is read from config_sentence_transformers.json; give encode a prompt_name=",
    "prompt": _PER_CALL,
    "prompt_name": _PER_CALL,
    "truncate_dim": _PER_CALL,
    "precision": _PER_CALL,
    "similarity_fn_name": "write encoder.similarity(a, b, name=...)",
    "model_kwargs": "write dtype= for the dtype to compute in; kernels are chosen by themselves",
    "torch_dtype": "write dtype=",
    "tokenizer_kwargs": "the tokenizer is read as its files say; leave it out",
    "processor_kwargs": "the tokenizer is read as its files say; leave it out",
    "config_kwargs": "the model is read as its config.json says; leave it out",
    "trust_remote_code": "no code of a repository is ever run, leave it out",
    "revision": _CACHE,
    "cache_folder": "set the environment variable HF_HOME",
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1",
    "token": "set the environment variable HF_TOKEN",
    "use_auth_token": "set the environment variable HF_TOKEN",
    "model_card_data": "model cards are not written, leave it out",
}
"""By keyword; a function that has the keyword gives no hint."""

_F = TypeVar("_F", bound=Callable[..., Any])


def hinted(*tables: Mapping[str, str]) -> Callable[[_F], _F]:
    """Return a decorator for a function, which gives it a TypeError that says what to write for a keyword it lacks.

    The hint is that of the first table that has one.
    """

    def decorate(function: _F) -> _F:
        keywords = [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
        named = {*inspect.signature(function).parameters}

        @wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for name in options:
                if name not in named:
                    there = f"; its options are {', '.join(keywords)}{did_you_mean(name, keywords)}"
                    hint = next((f": {table[name]}" for table in tables if name in table), there)
                    raise TypeError(f"{function.__name__}() has no {name}{hint}")
            return function(*arguments, **options)

        return checked  # type: ignore[return-value]

    return decorate
