"""The table of goals: each case, its peer, and the greatest time relative to the peer on two cores."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.cases import Problem
from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.imports import Import
from mha_conformance.bench.layer import Layer
from mha_conformance.bench.texts import MODEL, Texts
from mha_conformance.bench.timing import Work

from . import attention, layer, pairs, text_step, texts, training
from .modern import ModernBert
from .native import LEVELS
from .pairs import Pairs
from .text_step import TextStep
from .training import LayerStep, OptimiserStep

INSTALL = "run make bench-peers, which installs them"


@dataclass(frozen=True)
class Peer:
    """Another library's implementation of a problem."""

    name: str
    build: Callable[[Any], Work]
    """Function that returns the work for a problem."""
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""


@dataclass(frozen=True)
class Case:
    """A problem, its peer, and the goals for it."""

    name: str
    problem: Problem
    ours: Callable[[Any, str], Work]
    """Function that returns the work for the problem on a backend."""
    peer: Peer
    goals: Mapping[str, float | None]
    """Greatest ratio to the peer's time, by backend; None measures a backend without a goal."""
    open: bool = True
    """Whether backends not listed in `goals` can be measured too."""

    def takes(self, backend: str) -> bool:
        """Whether the case is measured on a backend."""
        return backend in self.goals or (self.open and backend not in KNOWN)


class MissingPeer(ImportError):
    """A peer of a chosen case is not installed."""


SDPA = Peer("torch SDPA", attention.sdpa, ("torch",))
SDPA_BFLOAT16 = Peer("torch SDPA, bfloat16", attention.sdpa, ("torch",))
SDPA_ARRAY = Peer("torch SDPA, mask as an array", attention.sdpa, ("torch",))
NAIVE = Peer("naive NumPy", Attention.plain)
FAST_PATH = Peer("nn.TransformerEncoderLayer, fast path", layer.fast_path, ("torch",))
IMPORT_NUMPY = Peer("import numpy", Import.plain)
SDPA_STEP = Peer("torch SDPA, with its gradients", training.sdpa_step, ("torch",))
SDPA_BACKWARD = Peer("torch SDPA, gradients alone", training.sdpa_backward, ("torch",))
LAYER_STEP = Peer("nn.TransformerEncoderLayer, training", training.layer_step, ("torch",))
ADAMW = Peer("torch.optim.AdamW", training.torch_optimiser, ("torch",))
GROUPED = Attention(1, 32, 1024, 64, kv_heads=8, causal=True)
DECODE_GROUPED = Attention(1, 32, 1, 64, keys=8192, kv_heads=8)

BACKENDS = ("numpy", "torch")
KNOWN = (*BACKENDS, *(f"{backend}+{level}" for level in LEVELS for backend in BACKENDS))
"""Contenders with goals; each is measured only in the cases that list it."""


def _attention(
    name: str,
    problem: Attention,
    numpy: float | None,
    torch: float | None,
    native: float | None = None,
    avx2: float | None = None,
    peer: Peer = SDPA,
) -> Case:
    """``native``, ``avx2``: the goals of the compiled plugin on both backends, on the best level and held down to AVX2."""
    goals = {"numpy": numpy, "torch": torch}
    for level, goal in zip(LEVELS, (native, avx2), strict=True):
        goals |= {f"{backend}+{level}": goal for backend in BACKENDS if goal is not None}
    return Case(name, problem, Attention.ours, peer, goals)


def _bfloat16(name: str, problem: Attention, native: float) -> Case:
    return Case(f"bfloat16 {name}", problem, Attention.ours, SDPA_BFLOAT16, {"torch+native": native}, open=False)


def _step(name: str, problem: AttentionStep, numpy: float) -> Case:
    return Case(f"attention and gradients {name}", problem, AttentionStep.ours, SDPA_STEP, {"numpy": numpy, "torch": 1.0})


def _backward(name: str, problem: AttentionBackward, native: float) -> Case:
    goals = {f"{backend}+native": native for backend in BACKENDS}
    return Case(f"gradients alone {name}", problem, AttentionBackward.ours, SDPA_BACKWARD, goals)


def _layer_step(name: str, problem: LayerStep) -> Case:
    return Case(f"encoder layer, training {name}", problem, LayerStep.ours, LAYER_STEP, {"numpy": 0.57, "torch": 0.55})


def _layer(name: str, problem: Layer, **goals: float | None) -> Case:
    return Case(name, problem, Layer.ours, FAST_PATH, {name.replace("_", "+"): goal for name, goal in goals.items()})


def _model(
    name: str,
    problem: Texts,
    build: Callable[[Any], Work] = texts.sentence_transformers,
    how: str = "batch 32",
    *,
    open: bool = True,
    **goals: float | None,
) -> Case:
    """``build``, ``how``: sentence-transformers' work, and in which way it is called."""
    peer = Peer(f"sentence-transformers, {how}", build, ("torch", "sentence_transformers", MODEL))
    return Case(name, problem, type(problem).ours, peer, goals, open)


CASES = (
    _attention("attention 8x8x512x64", Attention(8, 8, 512, 64), 1.00, 1.02, 0.37, 0.72),
    _attention("attention 8x8x512x64, causal", Attention(8, 8, 512, 64, causal=True), 0.90, 1.02, 0.21, 0.38),
    _attention("attention 1x8x2048x64", Attention(1, 8, 2048, 64), 1.08, 1.02, 0.40, 0.78),
    _attention("attention 1x8x2048x64, causal", Attention(1, 8, 2048, 64, causal=True), 1.08, 1.02, 0.33, 0.64),
    _attention("attention 1x8x8192x64, causal", Attention(1, 8, 8192, 64, causal=True), 1.08, 1.02, 0.38, 0.74),
    _attention("attention 32x12x128x32", Attention(32, 12, 128, 32), 1.10, 1.05, 0.34, 0.60),
    _attention("attention 32x12x128x32, causal", Attention(32, 12, 128, 32, causal=True), None, None, 0.23, 0.35),
    _attention("grouped queries 1x32x1024x64 of 8 heads, causal", GROUPED, None, None, 0.29, 0.54),
    _attention("wide scores 8x8x512x64", Attention(8, 8, 512, 64, stretch=40.0), 1.5, 1.05),
    _attention("wide scores 1x8x2048x64", Attention(1, 8, 2048, 64, stretch=40.0), 1.5, 1.05),
    _attention("wide scores 32x12x128x32", Attention(32, 12, 128, 32, stretch=40.0), 1.5, 1.05),
    _attention("window of 256, 1x8x8192x64", Attention(1, 8, 8192, 64, window=256), 0.15, 0.3, peer=SDPA_ARRAY),
    _attention("decode 1x8x1x64, 8192 keys", Attention(1, 8, 1, 64, keys=8192), 1.1, 1.05, 0.49, 0.53),
    _attention("decode 1x32x1x64, 8192 keys of 8 heads", DECODE_GROUPED, None, None, 0.31, 0.40),
    _bfloat16("8x8x512x64", Attention(8, 8, 512, 64, dtype="bfloat16"), 0.22),
    _bfloat16("8x8x512x64, causal", Attention(8, 8, 512, 64, causal=True, dtype="bfloat16"), 0.12),
    _bfloat16("1x8x2048x64", Attention(1, 8, 2048, 64, dtype="bfloat16"), 0.22),
    _bfloat16("1x8x2048x64, causal", Attention(1, 8, 2048, 64, causal=True, dtype="bfloat16"), 0.18),
    _bfloat16("32x12x128x32", Attention(32, 12, 128, 32, dtype="bfloat16"), 0.15),
    _layer("encoder layer 8x128x512", Layer(8, 128), numpy=1.15, torch=1.00),
    _layer("encoder layer 8x512x512", Layer(8, 512), numpy=0.85, torch=0.75, numpy_native=0.40, torch_native=None),
    _step("8x8x512x64", AttentionStep(8, 8, 512, 64), 0.62),
    _step("8x8x512x64, causal", AttentionStep(8, 8, 512, 64, causal=True), 0.56),
    _step("1x8x2048x64", AttentionStep(1, 8, 2048, 64), 0.65),
    _step("1x8x2048x64, causal", AttentionStep(1, 8, 2048, 64, causal=True), 0.62),
    _step("32x12x128x32", AttentionStep(32, 12, 128, 32), 0.72),
    _backward("8x8x512x64", AttentionBackward(8, 8, 512, 64), 0.41),
    _backward("8x8x512x64, causal", AttentionBackward(8, 8, 512, 64, causal=True), 0.26),
    _backward("1x8x2048x64", AttentionBackward(1, 8, 2048, 64), 0.44),
    _backward("1x8x2048x64, causal", AttentionBackward(1, 8, 2048, 64, causal=True), 0.36),
    _layer_step("8x128x512, gelu", LayerStep(8, 128)),
    _layer_step("8x128x512, relu", LayerStep(8, 128, activation="relu")),
    _model(
        "text encoder, training, 32 sentences",
        TextStep(),
        text_step.sentence_transformers_step,
        "training",
        numpy=0.45,
        torch=0.45,
    ),
    Case("AdamW, 22.6 million weights", OptimiserStep(), OptimiserStep.ours, ADAMW, {"numpy": 1.0, "torch": None}),
    _model("text encoder", Texts(), numpy=0.35, torch=0.28),
    _model("text encoder, bfloat16", Texts("bfloat16"), open=False, torch=0.14),
    _model("text encoder, 5120 texts", Texts(copies=20), numpy=None, torch=None),
    _model("ModernBERT-base with random weights, 64 sentences", ModernBert(), numpy=0.60, torch=0.45),
    _model("cross-encoder, 256 pairs", Pairs(), pairs.sentence_transformers, numpy=0.40, torch=0.30),
    Case("tiny call 1x1x8x8", Attention(1, 1, 8, 8), Attention.ours, NAIVE, {"numpy": 1.0, "numpy+native": 0.30}, open=False),
    Case("tiny call 1x1x8x8", Attention(1, 1, 8, 8), Attention.ours, SDPA, {"torch": 1.6, "torch+native": 0.90}),
    Case("import mha_core", Import(), Import.ours, IMPORT_NUMPY, {"numpy": 1.15}, open=False),
)


def chosen(words: Sequence[str]) -> list[Case]:
    """Return the cases whose name contains any of the words; all cases if there are none.

    Raises ValueError, which lists the names, for a word that no name contains.
    """
    found = [case for case in CASES if not words or any(word.lower() in case.name.lower() for word in words)]
    for word in words:
        if not any(word.lower() in case.name.lower() for case in CASES):
            names = "\n  ".join(dict.fromkeys(case.name for case in CASES))
            raise ValueError(f"no case has {word!r} in its name; the cases are\n  {names}")
    return found


def check_installed(cases: Sequence[Case]) -> None:
    """Raise MissingPeer if a peer of a case is not installed; the message names each peer and what it needs."""
    lacking = {
        f"{case.peer.name} needs {module}"
        for case in cases
        for module in case.peer.needs
        if importlib.util.find_spec(module) is None
    }
    if lacking:
        raise MissingPeer(f"{'; '.join(sorted(lacking))}: {INSTALL}")
