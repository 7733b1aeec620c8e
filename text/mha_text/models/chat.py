"""Chat templates: a pair of texts as the messages of a chat, which jinja2 renders in a sandbox, as transformers does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from .files import ModelError, dict_field, one_of, read_json, read_text

_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "message.content[")
"""A template with one of these expects the content of a message as a list of parts, by the rule of sentence-transformers."""
_NOT_VARIABLES = """
chat_template continue_final_message conversation documents load_audio_from_video max_length padding processor_kwargs
restore_suffix return_assistant_tokens_mask return_dict return_tensors sanitize_control_tokens task tokenize tokenizer_kwargs
tools truncation
"""
"""Options of transformers and sentence-transformers that are no variables of a template."""
_SAFE = (3, 1, 6)
"""The first version of jinja2 without known ways out of its sandbox."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template of jinja2 for chats, whose messages have the roles system, query and document."""

    source: str
    path: Path
    """The file with the template."""
    variables: Mapping[str, Any]
    """Variables of the template besides the messages: the special tokens, and options of the model."""
    is_structured: bool
    """True if the content of a message is a list with one part, {"type": "text", "text": ...}, and not a string."""

    def __call__(self, query: str, document: str, prompt: str = "") -> str:
        """Return the text of a chat; ``prompt`` is the system message, if there is one."""
        chat = [("system", prompt)] if prompt else []
        messages = [{"role": role, "content": text} for role, text in [*chat, ("query", query), ("document", document)]]
        return self.dialogue(messages)

    def dialogue(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of messages, each {"role": ..., "content": a string}. Raises ModelError if the template fails."""
        if self.is_structured:
            messages = [
                {**each, "content": [{"type": "text", "text": text}]} if isinstance(text := each.get("content"), str) else each
                for each in messages
            ]
        messages = [*messages]
        try:
            with self._bounded(messages):
                return str(_compiled(self.source).render(messages=messages, **self.variables))
        except Exception as cause:  # a template is a program
            raise self._error(cause) from cause

    def check(self) -> None:
        """Raise ModelError unless the template can be used, and shows both texts of a pair."""
        from jinja2.meta import find_undeclared_variables

        try:
            with self._bounded([]):
                used = find_undeclared_variables(_environment().parse(self.source))
        except Exception as cause:  # jinja2 has errors of Python for some programs that are none
            raise self._error(cause) from cause
        if missing := sorted(name for name in used if name.endswith("_token") and name not in self.variables):
            raise ModelError(
                f"{self.path}: the chat template uses {', '.join(missing)}, but tokenizer_config.json lacks it: add it there"
            )
        first = self("alpha", "bravo")
        lost = [role for role, pair in (("query", ("golf", "bravo")), ("document", ("alpha", "golf"))) if self(*pair) == first]
        if lost:
            raise ModelError(
                f"{self.path}: the chat template leaves out the {' and the '.join(lost)}: "
                "it must show the messages with the roles 'query' and 'document'"
            )

    def _bounded(self, messages: list[Any]) -> AbstractContextManager[None]:
        _environment()  # checks the version of jinja2
        from .chat_sandbox import bounded

        return bounded([messages, self.variables])

    def _error(self, cause: Exception) -> ModelError:
        why = f"{type(cause).__name__}: {cause}"
        return ModelError(f"{self.path}: the chat template cannot be used: {why[:1000]}")


def read_chat(folder: Path, by_sentence_transformers: bool) -> ChatTemplate | None:
    """Return the chat template that pairs are rendered with; None if they are given to the tokenizer as they are.

    If sentence-transformers wrote the directory, sentence_bert_config.json says whether there are messages; in other
    directories there are, if there is a template."""
    path = folder / "sentence_bert_config.json"
    settings: dict[str, Any] = read_json(path, optional=True) if by_sentence_transformers else {}
    options = dict_field(settings, path, "processing_kwargs")
    if unknown := set(options) - {"chat_template"}:
        raise ModelError(f"{path}: processing_kwargs has {', '.join(sorted(unknown))}; supported: chat_template")
    message = dict_field(dict_field(settings, path, "modality_config"), path, "message")
    if by_sentence_transformers and not message:
        return None
    where, source, is_named = _template(folder)
    if source is None:
        if message:
            raise ModelError(f"{path} asks for a chat template, but there is neither {where} nor one in tokenizer_config.json")
        return None
    variables = dict_field(options, path, "chat_template")
    if unknown := set(variables).intersection(_NOT_VARIABLES.split()):
        raise ModelError(f"{path}: chat_template has {', '.join(sorted(unknown))}; supported: variables of the template")
    style = one_of(message.get("format", "auto"), ("auto", "structured", "flat"), path, "format")
    is_structured = is_named or any(each in source for each in _STRUCTURED) if style == "auto" else style == "structured"
    variables = {"tools": None, "documents": None, "add_generation_prompt": False, **_special_tokens(folder), **variables}
    template = ChatTemplate(source, where, variables, is_structured)
    template.check()
    return template


def read_dialogue(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a language model, which ends where its answer begins; None if there is none."""
    path, source, is_named = _template(folder)
    if source is None:
        return None
    variables = {"tools": None, "documents": None, **_special_tokens(folder), "add_generation_prompt": True}
    return ChatTemplate(source, path, variables, is_named or any(each in source for each in _STRUCTURED))


def _template(folder: Path) -> tuple[Path, str | None, bool]:
    """Return the file with the template, the template, and whether it is the default among several with names.

    The file is chat_template.jinja if there is no template.
    """
    jinja, path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if jinja.exists():
        return jinja, read_text(jinja), (folder / "additional_chat_templates").exists()
    template = read_json(path, optional=True).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        if "default" not in named:
            raise ModelError(f"{path}: chat_template has {', '.join(map(str, named))}; expected one with the name 'default'")
        return path, str(named["default"]), True
    if template is None:
        return jinja, None, False
    if not isinstance(template, str):
        raise ModelError(f"{path}: chat_template is {type(template).__name__}; expected str")
    return path, template, False


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens by their names, such as eos_token.

    special_tokens_map.json is that of tokenizers from before version 4.34 of transformers, which lack added_tokens_decoder.
    """
    config, older = (read_json(folder / f"{name}.json", optional=True) for name in ("tokenizer_config", "special_tokens_map"))
    extra = config.get("extra_special_tokens")
    settings = {**config, **(extra if isinstance(extra, dict) else {})}
    if "added_tokens_decoder" not in config:
        settings |= older
    tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in settings.items()}
    return {name: token for name, token in tokens.items() if name.endswith("_token") and isinstance(token, str)}


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


@cache
def _environment() -> Any:
    """Return the environment of templates: sandboxed, since a model may come from anywhere."""
    from importlib.metadata import version

    if tuple(map(int, re.findall(r"\d+", version("jinja2"))[:3])) < _SAFE:
        raise ImportError("chat templates need a newer jinja2, whose sandbox is safe: pip install --upgrade 'jinja2>=3.1.6'")
    from .chat_sandbox import ChatEnvironment

    return ChatEnvironment()
