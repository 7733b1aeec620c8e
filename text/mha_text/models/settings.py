"""The settings of a model in sentence-transformers' own file: prompts, similarity, and how many numbers a vector keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mha_core import MhaError
from mha_core.shared import did_you_mean

from .files import ModelError, one_of, read_json
from .files import field as field_of
from .similarity import SIMILARITIES

FILE = "config_sentence_transformers.json"


class OptionError(MhaError, ValueError):
    """An option that a model does not allow; the message says what it allows."""


_ALWAYS = ("query", "document")


@dataclass(frozen=True)
class Settings:
    """The preparation of texts and the comparison of vectors, unless a call says otherwise."""

    prompts: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(_ALWAYS, ""))
    """Texts that are put in front of a text, by name."""
    default_prompt_name: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    """The number of numbers that vectors keep; None: all."""

    @classmethod
    def read(cls, folder: Path, *, always: Sequence[str] = _ALWAYS) -> Self:
        """Read config_sentence_transformers.json, if there is one. Raises ModelError for settings that cannot be used.

        ``always``: the names of prompts that are empty unless the file has them.
        """
        path = folder / FILE
        config: dict[str, Any] = read_json(path, optional=True)
        present = {name: value for name, value in config.items() if value is not None}
        prompts = present.get("prompts", {})
        if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
            raise ModelError(f"{path}: prompts is {prompts!r}; expected texts by their names")
        prompts = dict.fromkeys(always, "") | {name: text or "" for name, text in prompts.items()}
        return cls(
            prompts,
            one_of(present["default_prompt_name"], prompts, path, "default_prompt_name")
            if "default_prompt_name" in present
            else None,
            one_of(present.get("similarity_fn_name", "cosine"), SIMILARITIES, path, "similarity_fn_name"),
            field_of(present, path, "truncate_dim") if "truncate_dim" in present else None,
        )

    def prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        """Return the text to put in front of texts: ``prompt``, the one called ``prompt_name``, or the model's default."""
        if prompt is not None and prompt_name is not None:
            raise OptionError("prompt and prompt_name are both given; expected one of them")
        if prompt is not None:
            if not isinstance(prompt, str):
                raise TypeError(f"prompt is {type(prompt).__name__}; expected str")
            return prompt
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            hint = did_you_mean(name, self.prompts)
            raise OptionError(f"prompt_name is {name!r}; the model has the prompts {', '.join(self.prompts)}{hint}")
        return self.prompts[name]

    def with_prompt(self, names: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a call, with the first of ``names`` that the model has, unless they say which prompt to use."""
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return dict(options)
        return {**options, "prompt_name": next((name for name in names if name in self.prompts), None)}
