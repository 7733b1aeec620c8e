"""Problems for models of texts that no package carries: each is written once, to build/."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mha_text as mt
from mha_conformance.bench import plain_numpy
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work, loaded, on
from mha_conformance.oracle.tolerance import assert_within

BUILD = Path(__file__).parents[2] / "build"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
MODULES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
BOUND = 1e-5  # of a score between 0 and 1
SEED = 0


def once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder of a model; ``write(empty_folder)`` writes its files if the folder does not exist.

    The folder appears only when it is complete. Another process that writes it at the same time must write the same files.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    empty = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        write(empty)
        os.rename(empty, folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(empty, ignore_errors=True)
    return folder


class Written(Texts):
    """Texts for a model with random weights and the tokenizer of all-MiniLM-L6-v2."""

    name: str
    """Name of its folder in build/."""

    @property
    def source(self) -> Path:
        """The folder of all-MiniLM-L6-v2."""
        return super().folder

    @property
    def folder(self) -> Path:
        """The model's folder, which is written if it is not there."""
        return once(BUILD / self.name, self.write)

    def write(self, folder: Path) -> None:
        """Write the model to an empty folder; here, the files of the tokenizer."""
        self._copy(TOKENIZER, folder)

    def _copy(self, names: Iterable[str], folder: Path) -> None:
        for name in names:
            shutil.copyfile(self.source / name, folder / name)


@dataclass(frozen=True)
class ModernBert(Written):
    """64 sentences; the sizes are the defaults of transformers' ModernBertConfig, except for MiniLM's smaller vocabulary."""

    first: int | None = 64
    layers: int = 22

    def small(self) -> ModernBert:
        """Return the same problem with few sentences."""
        return replace(self, every=100)

    @property
    def limit(self) -> Limit:
        """The matrix products for all tokens; no sentence is longer than a layer's window."""
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        weights = self.layers * (4 * width**2 + 3 * width * inner)  # Wqkv and Wo; Wi, which has the gate, and Wo
        tokenizer = plain_numpy.TextEncoder(self.source)
        lengths = [len(tokenizer.ids(text)) for text in self.texts()]
        return Limit(MATRIX, plain_numpy.operations(weights, self.layers, width, lengths))

    def exact(self) -> np.ndarray:
        """Return the vectors of mha_core in float64; sentence-transformers' are checked against them too."""
        encoder = mt.TextEncoder.from_pretrained(self.folder, backend="numpy", dtype="float64")
        return encoder.encode(self.texts(), progress=False)

    @property
    def name(self) -> str:
        """Name of its folder in build/."""
        return f"modernbert-{self.layers}-layers"

    def write(self, folder: Path) -> None:
        """Write the model with the modules of the other: the mean over the tokens, then length 1."""
        import torch
        from tokenizers import Tokenizer
        from transformers import ModernBertConfig, ModernBertModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        tokenizer = Tokenizer.from_file(str(self.source / "tokenizer.json"))
        special = {f"{name}_token_id": tokenizer.token_to_id(f"[{name.upper()}]") for name in ("pad", "cls", "sep")}
        ends = {"bos_token_id": special["cls_token_id"], "eos_token_id": special["sep_token_id"]}
        config = ModernBertConfig(num_hidden_layers=self.layers, vocab_size=tokenizer.get_vocab_size(), **special, **ends)
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            ModernBertModel(config).save_pretrained(folder)
        super().write(folder)
        self._copy(MODULES, folder)
        pooling = Path("1_Pooling", "config.json")
        modes = json.loads((self.source / pooling).read_text(encoding="utf-8"))
        (folder / pooling).parent.mkdir()
        (folder / pooling).write_text(json.dumps(modes | {"word_embedding_dimension": config.hidden_size}), encoding="utf-8")


@dataclass(frozen=True)
class Pairs(Written):
    """256 pairs: four sentences as queries, each with 64 of the texts as documents, four of them paragraphs."""

    name = "cross-encoder"

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs."""
        texts = super().texts()
        return [(query, document) for query in texts[:240:60] for document in texts[::4]]

    def small(self) -> Pairs:
        """Return the same problem with few pairs."""
        return replace(self, every=32)

    @property
    def limit(self) -> Limit:
        """The matrix products for all tokens, including special tokens and excluding padding, without those of the head."""
        encoder = plain_numpy.TextEncoder(self.source)
        lengths = [len(encoder.tokenizer.encode(*pair).ids) for pair in self.pairs()]
        return Limit(MATRIX, encoder.operations(lengths))

    def judge(self) -> Callable[[Any], None]:
        """Return a check of all scores against those of mha_core in float64; the peer's are checked too."""
        exact = mt.CrossEncoder.from_pretrained(self.folder, backend="numpy", dtype="float64").predict(self.pairs())
        bound = np.full(exact.shape, BOUND)
        return lambda answer: assert_within("cross-encoder", answer, exact, bound)

    def ours(self, backend: str) -> Work:
        """Return the call of ``mha_text.CrossEncoder`` on a backend."""
        model = mt.CrossEncoder.from_pretrained(self.folder, backend=backend)
        pairs = self.pairs()
        return on(loaded(backend), lambda: model.predict(pairs, progress=False))

    def write(self, folder: Path) -> None:
        """Write all-MiniLM-L6-v2 as a BertForSequenceClassification with a random head."""
        from safetensors.numpy import load_file, save_file

        super().write(folder)
        config = json.loads((self.source / "config.json").read_text(encoding="utf-8"))
        config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        weights = {f"bert.{name}": x for name, x in load_file(self.source / "model.safetensors").items()}
        width = int(config["hidden_size"])
        weights["classifier.weight"] = np.random.default_rng(SEED).standard_normal((1, width), dtype=np.float32) / 8
        weights["classifier.bias"] = np.zeros(1, dtype=np.float32)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
