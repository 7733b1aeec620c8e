"""The files of a cross-encoder: how its logits are made, the activation and the prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from mha_core.shared import Array

from .checkpoint import choose
from .classifier import build_classifier
from .families import MODEL_TYPES
from .files import ModelError, WeightsFile, field, model_type, one_of, read_json, torch_class
from .heads import HEADS, LANGUAGE_MODELS
from .logit_score import Answers, build_logit_score
from .modules import listed_modules
from .scores import CLASSES
from .settings import FILE, Settings
from .tokens import read_library


@dataclass(frozen=True)
class CrossEncoderFiles:
    """The directory of a cross-encoder."""

    folder: Path
    by_sentence_transformers: bool
    """True if sentence-transformers wrote it as a cross-encoder, in version 4 or later."""
    answers: Answers | None
    """The tokens whose logits make the score, of a language model; None: there is a head for classification."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raise ModelError for modules that are not supported, and a language model without the tokens yes and no."""
        path = folder / FILE
        written = (folder / "modules.json").exists() and read_json(path, optional=True).get("model_type") == "CrossEncoder"
        return cls(folder, written, _of_modules(folder) if written else _of_config(folder))

    def read_model(self, make: Callable[[Any], Array]) -> Any:
        """Return the model; ``make`` turns a NumPy array into the backend's."""
        kind = model_type(self.folder, HEADS if self.answers is None else LANGUAGE_MODELS)
        file = WeightsFile(self.folder)
        if self.answers is None and f"{HEADS[kind].classifier}.weight" not in file:
            raise ModelError(
                f"{file.path} has no {HEADS[kind].classifier}.weight: it is an encoder without a classification head; "
                "read it with TextEncoder.from_pretrained"
            )
        build = build_classifier if self.answers is None else partial(build_logit_score, answers=self.answers)
        model = build(self.folder, choose(self.folder, MODEL_TYPES[kind], file), file, make)
        file.finish()
        return model

    def settings(self) -> Settings:
        """Return the prompts."""
        return Settings.read(self.folder, always=()) if self.by_sentence_transformers else Settings(prompts={})

    def activation(self, num_labels: int) -> str:
        """Return the activation, as sentence-transformers does.

        It is the first that is given: activation_fn of config_sentence_transformers.json, if that describes a cross-encoder; of
        config.json; sbert_ce_default_activation_function of config.json, from before version 4; or else sigmoid for one label,
        and identity for several. Raises ModelError for an activation that is not supported.
        """
        path = self.folder / FILE
        if self.by_sentence_transformers and (value := read_json(path).get("activation_fn")) is not None:
            return torch_class(value, CLASSES, path, "activation_fn")
        path = self.folder / "config.json"
        config = read_json(path)
        nested = config.get("sentence_transformers")
        if isinstance(nested, dict) and "activation_fn" in nested:
            value, name = nested["activation_fn"], "activation_fn"
        else:
            value, name = config.get("sbert_ce_default_activation_function"), "sbert_ce_default_activation_function"
        if value is not None:
            return torch_class(value, CLASSES, path, name)
        return "sigmoid" if num_labels == 1 else "identity"


def _of_modules(folder: Path) -> Answers | None:
    """Return the answers of the module LogitScore; None without one."""
    path, modules = folder / "modules.json", listed_modules(folder)
    kinds = [one_of(kind, ["Transformer", "LogitScore"], path, "module type") for kind, _ in modules]
    if kinds == ["Transformer"]:
        return None
    if kinds != ["Transformer", "LogitScore"]:
        raise ModelError(f"{path} has the modules {', '.join(kinds)}; expected Transformer, and LogitScore or nothing after it")
    config = folder / modules[1][1] / "config.json"
    settings = read_json(config)
    one_of(settings.get("module_input_name", "causal_logits"), ["causal_logits"], config, "module_input_name")
    false = settings.get("false_token_id")
    return Answers(
        field(settings, config, "true_token_id", least=0),
        None if false is None else field(settings, config, "false_token_id", least=0),
    )


def _of_config(folder: Path) -> Answers | None:
    """Return yes and no, if config.json says that the model is a language model; None if it does not."""
    architectures = read_json(folder / "config.json").get("architectures")
    if not (isinstance(architectures, list) and architectures and str(architectures[0]).endswith("ForCausalLM")):
        return None
    path = folder / "tokenizer.json"
    library = read_library(path)
    true, false = (library.token_to_id(token) for token in ("yes", "no"))
    if true is None or false is None:
        raise ModelError(
            f"{path} has no token 'yes' or no token 'no', whose logits make the score of a language model; "
            "a module LogitScore of sentence-transformers may name others"
        )
    return Answers(true, false)
