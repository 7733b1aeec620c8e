"""Chat templates: a pair of texts as the messages of a chat, which jinja2 renders in a sandbox, as transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .files import ModelError, read_json

_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "message.content[")
"""What a template has that expects the content of a message as a list of parts, by the rule of sentence-transformers."""
_NOT_OF_THE_TEMPLATE = ("max_length", "padding", "return_tensors", "truncation")


@dataclass(frozen=True)
class ChatTemplate:
    """A template of jinja2 for chats, whose messages have the roles system, query and document."""

    source: str
    path: Path
    """The file with the template."""
    variables: Mapping[str, Any]
    """What the template may use besides the messages: the special tokens, and options of the model."""
    is_structured: bool
    """Whether the content of a message is a list with one part, {"type": "text", "text": ...}, and not a string."""

    def __call__(self, query: str, document: str, prompt: str = "") -> str:
        """Return the text of a chat; ``prompt`` is the message of the system, if there is one."""
        import jinja2

        chat = [("system", prompt)] if prompt else []
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self.is_structured else text}
            for role, text in [*chat, ("query", query), ("document", document)]
        ]
        try:
            return str(_compiled(self.source).render(messages=messages, **self.variables))
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as cause:
            raise ModelError(f"{self.path}: the chat template cannot be used: {type(cause).__name__}: {cause}") from cause

    def check(self) -> None:
        """Raise ModelError unless both texts of a pair are in the text of its chat."""
        first = self("alpha", "bravo")
        lost = [role for role, pair in (("query", ("golf", "bravo")), ("document", ("alpha", "golf"))) if self(*pair) == first]
        if lost:
            raise ModelError(
                f"{self.path}: the chat template has no place for the {' and the '.join(lost)}: "
                "it needs messages with the roles 'query' and 'document'"
            )


def read_chat(folder: Path, is_saved: bool) -> ChatTemplate | None:
    """Return the chat template that pairs are rendered with; None if they are given to the tokenizer as they are.

    ``is_saved``: whether sentence-transformers wrote the directory. Then sentence_bert_config.json says whether there are
    messages; in other directories there are, if there is a template.

    Raises ModelError for a template that cannot be used, or has no place for a pair.
    """
    path = folder / "sentence_bert_config.json"
    settings: dict[str, Any] = read_json(path) if is_saved and path.exists() else {}
    message = _dict(_dict(settings, "modality_config", path), "message", path)
    if is_saved and not message:
        return None
    where, source = _template(folder)
    if source is None:
        if message:
            raise ModelError(f"{path} asks for a chat template, but there is neither {where} nor one in tokenizer_config.json")
        return None
    options = _dict(settings, "processing_kwargs", path)
    if unknown := set(options) - {"chat_template"}:
        raise ModelError(f"{path}: processing_kwargs has {', '.join(sorted(unknown))}; supported: chat_template")
    variables = _dict(options, "chat_template", path)
    if unknown := set(variables).intersection(_NOT_OF_THE_TEMPLATE):
        raise ModelError(f"{path}: chat_template has {', '.join(sorted(unknown))}; expected variables of the template")
    style = message.get("format", "auto")
    is_structured = any(each in source for each in _STRUCTURED) if style == "auto" else style == "structured"
    given = {"tools": None, "documents": None, "add_generation_prompt": False, **_special_tokens(folder), **variables}
    template = ChatTemplate(source, where, given, is_structured)
    template.check()
    return template


def _template(folder: Path) -> tuple[Path, str | None]:
    """Return the file with the template, and the template; the first is chat_template.jinja if there is none."""
    own, path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.exists():
        return own, own.read_text(encoding="utf-8")
    found = read_json(path).get("chat_template") if path.exists() else None
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        if "default" not in named:
            raise ModelError(f"{path}: chat_template has {', '.join(map(str, named))}; expected one with the name 'default'")
        found = named["default"]
    if found is None:
        return own, None
    if not isinstance(found, str):
        raise ModelError(f"{path}: chat_template is {type(found).__name__}; expected str")
    return path, found


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens by their names, such as eos_token."""
    found = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        for key, value in (read_json(path) if path.exists() else {}).items():
            token = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(token, str):
                found[key] = token
    return found


def _dict(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return the dict of this name; {} if there is none."""
    found = values.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ModelError(f"{path}: {name} is {found!r}; expected dict")
    return found


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    """Return the template in the environment of transformers: sandboxed, since a model may come from anywhere."""
    from datetime import datetime

    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
