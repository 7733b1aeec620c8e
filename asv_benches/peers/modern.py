"""A text encoder with the sizes of ModernBERT-base and random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mha_text as mt
from mha_conformance.bench import plain_numpy
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.texts import Texts

from .written import BUILD, TOKENIZER, copy_files, once

if TYPE_CHECKING:
    import numpy as np

SEED = 0
MODULES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")


@dataclass(frozen=True)
class ModernBert(Texts):
    """64 sentences; the sizes are the defaults of transformers' ModernBertConfig, except for MiniLM's smaller vocabulary."""

    first: int | None = 64
    layers: int = 22

    def small(self) -> ModernBert:
        """Return the same problem with few sentences."""
        return replace(self, every=100)

    @property
    def folder(self) -> Path:
        """The model's folder, which is written if it is not there."""
        source = super().folder
        return once(BUILD / f"modernbert-{self.layers}-layers", lambda folder: _write(source, folder, self.layers))

    @property
    def limit(self) -> Limit:
        """The matrix products for all tokens; no sentence is longer than a layer's window."""
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        weights = self.layers * (4 * width**2 + 3 * width * inner)  # Wqkv and Wo; Wi, which has the gate, and Wo
        tokenizer = plain_numpy.TextEncoder(super().folder)
        lengths = [len(tokenizer.ids(text)) for text in self.texts()]
        return Limit(MATRIX, plain_numpy.operations(weights, self.layers, width, lengths))

    def exact(self) -> np.ndarray[Any, Any]:
        """Return the vectors of mha_core in float64; sentence-transformers' are checked against them too."""
        encoder = mt.TextEncoder.from_pretrained(self.folder, backend="numpy", dtype="float64")
        return encoder.encode(self.texts(), progress=False)


def _write(source: Path, folder: Path, layers: int) -> None:
    """Write the model with the tokenizer and the modules of another: the mean over the tokens, then length 1."""
    import torch
    from tokenizers import Tokenizer
    from transformers import ModernBertConfig, ModernBertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    special = {f"{name}_token_id": tokenizer.token_to_id(f"[{name.upper()}]") for name in ("pad", "cls", "sep")}
    ends = {"bos_token_id": special["cls_token_id"], "eos_token_id": special["sep_token_id"]}
    config = ModernBertConfig(num_hidden_layers=layers, vocab_size=tokenizer.get_vocab_size(), **special, **ends)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        ModernBertModel(config).save_pretrained(folder)
    copy_files(source, folder, TOKENIZER + MODULES)
    pooling = Path("1_Pooling", "config.json")
    modes = json.loads((source / pooling).read_text(encoding="utf-8"))
    (folder / pooling).parent.mkdir()
    (folder / pooling).write_text(json.dumps(modes | {"word_embedding_dimension": config.hidden_size}), encoding="utf-8")
