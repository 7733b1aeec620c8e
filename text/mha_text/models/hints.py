"""Hints for names of sentence-transformers that have another form here, or are not needed: keywords, methods, functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from mha_core.shared import did_you_mean

_FIRST = "write it first, without a name"
_BEFORE = "give it to from_pretrained"
_PER_CALL = "give it to encode, which takes it for each call"
_ACTIVATION = "write activation= with a name, such as 'sigmoid' or 'identity', in predict or rank"
_PER_PAIRS = "give it to predict or rank, which take it for each call"
_ONE_PROCESS = "one process uses all cores, leave it out"
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

PAIR_HINTS: Mapping[str, str] = {
    **HINTS,
    # predict and rank
    "batch_size": "pairs are packed by tokens, leave it out",
    "activation_fn": _ACTIVATION,
    "activation_fct": _ACTIVATION,
    "default_activation_function": _ACTIVATION,
    "apply_softmax": "write activation='softmax'",
    "convert_to_tensor": "scores are arrays of the backend: write from_pretrained(..., backend='torch')",
    "convert_to_numpy": "scores are arrays of the backend: write from_pretrained(..., backend='numpy')",
    "pool": _ONE_PROCESS,
    "chunk_size": _ONE_PROCESS,
    "num_workers": _ONE_PROCESS,
    # from_pretrained
    "max_length": "write max_seq_length into sentence_bert_config.json of the model's directory",
    "num_labels": "the model's config.json says how many labels it has",
    "automodel_args": "write dtype=, if that is what it sets",
    "prompt": _PER_PAIRS,
    "prompt_name": _PER_PAIRS,
    "prompts": "they are read from config_sentence_transformers.json; give predict a prompt=",
    "default_prompt_name": "it is read from config_sentence_transformers.json; give predict a prompt_name=",
    "processing_kwargs": "pairs are read as the model's files say; leave it out",
}
"""The same for cross-encoders."""

WRITING_HINTS: Mapping[str, str] = {
    # generate and stream
    "input_ids": "give texts, which the model's tokenizer cuts into tokens",
    "max_length": "write max_new_tokens=, which does not count the prompt",
    "do_sample": "write temperature=1.0 to draw tokens; the default 0 takes the most likely ones",
    "num_beams": "there is no beam search: leave it out",
    "repetition_penalty": "there is none: leave it out",
    "streamer": "write stream(prompt), which yields pieces of text",
    "stop_strings": "write stop=",
    "eos_token_id": "it is read from generation_config.json; write stop= for strings",
    "use_cache": "there is always a cache, leave it out",
    "batch_size": "all prompts are computed together, leave it out",
    # from_pretrained
    "torch_dtype": "write dtype=",
    "device_map": "write device=",
    "quantization_config": "write weights='int8'",
    "attn_implementation": "kernels are chosen by themselves: mha_core.use_kernel demands one",
    **{name: HINTS[name] for name in ("trust_remote_code", "revision", "token", "local_files_only")},
}
"""The same for language models, by keywords of transformers."""

_FROM_PRETRAINED = "read the model with from_pretrained(path, backend=..., device=..., dtype=...)"
_CORPUS = "write mt.encode_corpus, which encodes files in many processes"
_TRAIN = "write a loop of mha_core.value_and_grad and an optimiser such as mha_core.AdamW"

ATTRIBUTES: Mapping[str, str] = {
    **dict.fromkeys(("get_sentence_embedding_dimension", "get_embedding_dimension"), "write dim, without parentheses"),
    **dict.fromkeys(("get_max_seq_length", "max_length"), "write max_seq_length, without parentheses"),
    **dict.fromkeys(("tokenize", "preprocess"), "write tokenizer(texts), which returns the ids, and how many texts were cut"),
    **dict.fromkeys(("to", "cuda", "cpu", "half", "bfloat16"), _FROM_PRETRAINED),
    **dict.fromkeys(("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool"), _CORPUS),
    **dict.fromkeys(("fit", "old_fit"), _TRAIN),
    **dict.fromkeys(
        ("save_to_hub", "push_to_hub"), "write save_pretrained(path), and upload the directory with huggingface_hub"
    ),
    **dict.fromkeys(("truncate_sentence_embeddings", "truncate_embeddings"), "give encode a truncate_dim="),
    **{name: f"write encoder.settings.{name}" for name in ("prompts", "default_prompt_name", "truncate_dim")},
    "save": "write save_pretrained(path)",
    "forward": "call the model itself",
    "eval": "nothing is dropped out unless it is asked for, leave it out",
}
"""By attribute of a model."""

_COSINE = "encoder.similarity(a, b), with name='cosine' unless that is the model's own"
_MINING = "mt.semantic_search(vectors, vectors, k + 1), which finds each vector itself too; or mha encode FILE --similar K"

FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("paraphrase_mining", "paraphrase_mining_embeddings"), f"write {_MINING}"),
    **dict.fromkeys(("cos_sim", "pytorch_cos_sim"), f"write {_COSINE}"),
    **dict.fromkeys(
        ("pairwise_cos_sim", "pairwise_dot_score"), "write encoder.similarity_pairwise(a, b, name='cosine' or 'dot')"
    ),
    "dot_score": "write encoder.similarity(a, b, name='dot')",
    "util": f"for cos_sim write {_COSINE}; for semantic_search mt.semantic_search; for paraphrase_mining {_MINING}",
    **dict.fromkeys(("SentenceTransformer", "Transformer"), "read the model with mt.TextEncoder.from_pretrained(path)"),
    "losses": _TRAIN,
}
"""By name of a function, a class or a module in sentence_transformers, or in its util."""

_F = TypeVar("_F", bound=Callable[..., Any])


def hinted(function: _F) -> _F:
    """Give a method a TypeError that says what to write for a keyword it lacks, by ``_hints`` of its class."""
    parameters = inspect.signature(function).parameters
    keywords = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]

    @wraps(function)
    def checked(owner: Any, *arguments: Any, **options: Any) -> Any:
        for name in options:
            if name not in parameters:
                known = f"; its options are {', '.join(keywords)}{did_you_mean(name, keywords)}"
                hint = f": {owner._hints[name]}" if name in owner._hints else known
                raise TypeError(f"{function.__name__}() has no {name}{hint}")
        return function(owner, *arguments, **options)

    return checked  # type: ignore[return-value]
