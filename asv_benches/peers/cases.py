"""The table of goals: each case, its peer, and the greatest time relative to the peer on two cores."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.cases import Problem
from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.imports import Import
from mha_conformance.bench.layer import Layer
from mha_conformance.bench.texts import MODEL, Texts
from mha_conformance.bench.timing import Work

from . import attention, functions, language, layer, runtimes, texts, training
from .functions import MASKS, SCORES, FunctionAttention, with_built_in
from .language import Writing
from .native import LEVELS
from .texts import TextStep
from .training import LayerStep, OptimiserStep
from .written import ModernBert, Pairs

INSTALL = "run make bench-peers, which installs them"


@dataclass(frozen=True)
class Peer:
    """Another library's implementation of a problem."""

    name: str
    build: Callable[[Any], Work]
    """Function that returns the work for a problem."""
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    judged_as: Problem | None = None
    """The problem whose bound its answer must meet; by default, that of the case."""


@dataclass(frozen=True)
class Case:
    """A problem, its peer, and the goals for it."""

    name: str
    problem: Problem
    peer: Peer
    goals: Mapping[str, float | None]
    """Greatest ratio to the peer's time, by backend; None measures a backend without a goal."""
    open: bool = True
    """True if backends not listed in `goals` can be measured too."""
    ours: Callable[[Any, str], Work] | None = None
    """Function that returns the work for the problem on a backend; None: the problem's own."""

    def takes(self, backend: str) -> bool:
        """Return True if the case is measured on a backend."""
        return backend in self.goals or (self.open and backend not in KNOWN)


class MissingPeer(ImportError):
    """A peer of a chosen case is not installed."""


SDPA = Peer("torch SDPA", attention.sdpa, ("torch",))
SDPA_BFLOAT16 = Peer("torch SDPA, bfloat16", attention.sdpa, ("torch",))
SDPA_ARRAY = Peer("torch SDPA, mask as an array", attention.sdpa, ("torch",))
FLEX = Peer("torch flex_attention, compiled", attention.flex, ("torch",))
FLEX_FUNCTION = Peer("torch flex_attention, compiled", functions.flex, ("torch",))
SDPA_STEP = Peer("torch SDPA, with its gradients", attention.sdpa_step, ("torch",))
SDPA_BACKWARD = Peer("torch SDPA, gradients alone", attention.sdpa_backward, ("torch",))
JAX = Peer("jax.nn.dot_product_attention", attention.jax_nn, ("jax",))
JAX_STEP = Peer("jax.nn.dot_product_attention, with its gradients", attention.jax_nn, ("jax",))
NAIVE = Peer("naive NumPy", Attention.plain)
FAST_PATH = Peer("nn.TransformerEncoderLayer, fast path", layer.fast_path, ("torch",))
LAYER_STEP = Peer("nn.TransformerEncoderLayer, training", training.layer_step, ("torch",))
ADAMW = Peer("torch.optim.AdamW", training.torch_optimiser, ("torch",))
IMPORT_NUMPY = Peer("import numpy", Import.plain)
_MODELS = ("torch", "sentence_transformers", MODEL)
BATCHES = Peer("sentence-transformers, batch 32", texts.encoded, _MODELS)
PAIRS = Peer("sentence-transformers, batch 32", texts.predicted, _MODELS)
_EXPORT = (*_MODELS, "onnx", "onnxruntime")
_COARSE = Texts(bound=0.1)
ONNX = Peer("ONNX Runtime", runtimes.onnx_runtime, _EXPORT)
ONNX_INT8 = Peer("ONNX Runtime, int8", runtimes.onnx_runtime_int8, _EXPORT, _COARSE)
OPENVINO = Peer("OpenVINO", runtimes.openvino, (*_EXPORT, "openvino"))
OPENVINO_INT8 = Peer("OpenVINO, int8", runtimes.openvino_int8, (*_EXPORT, "openvino", "nncf"), _COARSE)
GENERATE = Peer("transformers, static cache", language.generated, ("torch", "transformers", MODEL))
TEXT_STEP = Peer("sentence-transformers, training", texts.trained, _MODELS)

BACKENDS = ("numpy", "torch")
COMPILED = "jax+native"
KNOWN = (*BACKENDS, *(f"{backend}+{level}" for level in LEVELS for backend in BACKENDS), COMPILED)
"""Contenders with goals; each is measured only in the cases that list it."""


def _goals(numpy: float | None, torch: float | None, *native: float) -> dict[str, float | None]:
    """``native``: the goals of the compiled plugin on both backends, on the best level and held down to AVX2."""
    levels = {f"{backend}+{level}": goal for level, goal in zip(LEVELS, native, strict=False) for backend in BACKENDS}
    return {"numpy": numpy, "torch": torch, **levels}


def _goals_of_native(*goals: float) -> dict[str, float | None]:
    """Return the goals of the compiled plugin alone."""
    return {name: goal for name, goal in _goals(None, None, *goals).items() if goal is not None}


def _attention(
    name: str, *goals: Any, kind: type[Attention] = Attention, peer: Peer = SDPA, open: bool = True, **options: Any
) -> Case:
    """Return a case whose name says batch x heads x queries x head_dim, and whether attention is causal."""
    sizes = re.search(r"\d+x\d+x\d+x\d+", name)
    assert sizes is not None
    problem = kind(*map(int, sizes[0].split("x")), causal="causal" in name, **options)
    return Case(name, problem, peer, goals[0] if isinstance(goals[0], dict) else _goals(*goals), open)


MEASURED: dict[str, float | None] = dict.fromkeys((*BACKENDS, *(f"{backend}+native" for backend in BACKENDS)))
"""The backends, alone and with the compiled plugin on its best level, without goals."""
SIZES = ("8x8x512x64", "8x8x512x64, causal", "1x8x2048x64", "1x8x2048x64, causal", "32x12x128x32")
CASES = (
    _attention("attention 8x8x512x64", 1.00, 1.02, 0.37, 0.72),
    _attention("attention 8x8x512x64, causal", 0.90, 1.02, 0.21, 0.38),
    _attention("attention 1x8x2048x64", 1.08, 1.02, 0.40, 0.78),
    _attention("attention 1x8x2048x64, causal", 1.08, 1.02, 0.33, 0.64),
    _attention("attention 1x8x8192x64, causal", 1.08, 1.02, 0.38, 0.74),
    _attention("attention 32x12x128x32", 1.10, 1.05, 0.34, 0.60),
    _attention("attention 32x12x128x32, causal", None, None, 0.23, 0.35),
    _attention("grouped queries 1x32x1024x64 of 8 heads, causal", None, None, 0.29, 0.54, kv_heads=8),
    *(_attention(f"wide scores {sizes}", 1.5, 1.05, stretch=40.0) for sizes in ("8x8x512x64", "1x8x2048x64", "32x12x128x32")),
    _attention("window of 256, 1x8x8192x64", MEASURED | _goals(0.15, 0.3), peer=SDPA_ARRAY, window=256),
    _attention("attention 1x8x2048x64, causal", MEASURED, peer=FLEX),
    _attention("window of 256, 1x8x8192x64", MEASURED, peer=FLEX, window=256),
    *(
        replace(
            _attention(f"{kind} as {what}, {sizes}", MEASURED, peer=FLEX_FUNCTION, kind=FunctionAttention),
            problem=FunctionAttention(*map(int, sizes.split("x")), kind=kind),
            ours=ours,
        )
        for sizes in ("1x8x2048x64", "1x8x8192x64")
        for kind in (*MASKS, *SCORES)
        for what, ours in (("a function", None), ("an option", with_built_in))
        if (kind, what) != ("dilated", "an option")
    ),
    _attention("decode 1x8x1x64, 8192 keys", 1.1, 1.05, 0.49, 0.53, keys=8192),
    _attention("decode 1x32x1x64, 8192 keys of 8 heads", None, None, 0.31, 0.40, keys=8192, kv_heads=8),
    *(
        _attention(f"decode {sizes} in int8", MEASURED | _goals_of_native(0.6), keys=8192, dtype="int8", **options)
        for sizes, options in (("1x8x1x64, 8192 keys", {}), ("1x32x1x64, 8192 keys of 8 heads", {"kv_heads": 8}))
    ),
    *(
        _attention(f"bfloat16 {sizes}", {"torch+native": goal}, peer=SDPA_BFLOAT16, open=False, dtype="bfloat16")
        for sizes, goal in zip(SIZES, (0.22, 0.12, 0.22, 0.18, 0.15), strict=True)
    ),
    *(
        replace(
            _attention(f"{what} in JAX {sizes}", {COMPILED: goal}, kind=kind, peer=peer, open=False), ours=attention.ours_on_jax
        )
        for what, goal, kind, peer in (("attention", 0.15, Attention, JAX), ("gradients", 0.2, AttentionStep, JAX_STEP))
        for sizes in SIZES[:4]
    ),
    Case("encoder layer 8x128x512", Layer(8, 128), FAST_PATH, _goals(1.15, 1.00)),
    Case("encoder layer 8x512x512", Layer(8, 512), FAST_PATH, MEASURED | {**_goals(0.85, 0.75), "numpy+native": 0.40}),
    *(
        _attention(f"attention and gradients {sizes}", goal, 1.0, kind=AttentionStep, peer=SDPA_STEP)
        for sizes, goal in zip(SIZES, (0.62, 0.56, 0.65, 0.62, 0.72), strict=True)
    ),
    *(
        _attention(
            f"gradients alone {sizes}",
            {f"{name}+native": goal for name in BACKENDS},
            kind=AttentionBackward,
            peer=SDPA_BACKWARD,
        )
        for sizes, goal in zip(SIZES[:4], (0.41, 0.26, 0.44, 0.36), strict=True)
    ),
    Case("encoder layer, training 8x128x512, gelu", LayerStep(8, 128), LAYER_STEP, _goals(0.57, 0.55)),
    Case("encoder layer, training 8x128x512, relu", LayerStep(8, 128, activation="relu"), LAYER_STEP, _goals(0.57, 0.55)),
    Case("text encoder, training, 32 sentences", TextStep(), TEXT_STEP, _goals(0.45, 0.45)),
    Case("AdamW, 22.6 million weights", OptimiserStep(), ADAMW, _goals(1.0, None)),
    Case("text encoder", Texts(), BATCHES, MEASURED | _goals(0.35, 0.28)),
    Case("text encoder, bfloat16", Texts("bfloat16"), BATCHES, {"torch": 0.14}, open=False),
    *(Case("text encoder", Texts(), peer, MEASURED) for peer in (ONNX, OPENVINO)),
    Case("text encoder, int8 weights", Texts(weights="int8"), BATCHES, _goals_of_native(0.12, 0.20), open=False),
    *(
        Case("text encoder, int8 weights", Texts(weights="int8"), peer, dict.fromkeys(_goals_of_native(0, 0)), open=False)
        for peer in (ONNX_INT8, OPENVINO_INT8)
    ),
    Case("text encoder, 5120 texts", Texts(copies=20), BATCHES, _goals(None, None)),
    Case("ModernBERT-base with random weights, 64 sentences", ModernBert(), BATCHES, _goals(0.60, 0.45)),
    Case("cross-encoder, 256 pairs", Pairs(), PAIRS, _goals(0.40, 0.30)),
    *(
        Case(f"language model {what}{also}", Writing(new=new, dtype=dtype), GENERATE, MEASURED | goals)
        for dtype, also in (("float32", ""), ("bfloat16", ", bfloat16"))
        for what, new, goals in (
            ("reads 512 tokens", 1, {"numpy+native": 0.6, "torch+native": 0.6}),
            ("writes 65 tokens after 512", 65, {"numpy+native": 0.8, "torch+native": 0.7}),
        )
    ),
    Case("tiny call 1x1x8x8", Attention(1, 1, 8, 8), NAIVE, {"numpy": 1.0, "numpy+native": 0.30}, open=False),
    Case("tiny call 1x1x8x8", Attention(1, 1, 8, 8), SDPA, {"torch": 1.6, "torch+native": 0.90}),
    Case("import mha_core", Import(), IMPORT_NUMPY, {"numpy": 1.15}, open=False),
)


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
