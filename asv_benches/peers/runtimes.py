"""ONNX Runtime's and OpenVINO's work on texts, tokenization included: sentence-transformers' model, exported once to build/.

Both get what makes them fastest: sorted texts, BATCH of them in a call, their own fused operations, one thread for each core.
int8 is what their guides name for transformers: ONNX Runtime rounds activations at run time, and has a scale for each channel;
OpenVINO's scales come from these same texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work

from .written import BUILD, once

BATCH = 8
LENGTH = 256  # tokens of a text, as all-MiniLM-L6-v2's settings say
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

Inputs: TypeAlias = Mapping[str, "np.ndarray[Any, Any]"]
"""Arrays (texts, tokens) of integers, by INPUTS."""


def onnx_runtime(problem: Texts) -> Work:
    """Return the call of ONNX Runtime in float32, with attention, GELU and norms fused for BERT."""
    return encoded(problem, _session(once(BUILD / "onnx-fused", partial(_fuse, problem)) / "model.onnx"))


def onnx_runtime_int8(problem: Texts) -> Work:
    """Return the call of ONNX Runtime with int8 weights, dynamic, with a scale for each channel."""
    return encoded(problem, _session(once(BUILD / "onnx-int8", partial(_quantize, problem)) / "model.onnx"))


def openvino(problem: Texts) -> Work:
    """Return the call of OpenVINO in float32."""
    return encoded(problem, _compiled(_exported(problem)))


def openvino_int8(problem: Texts) -> Work:
    """Return the call of OpenVINO with int8 weights and activations, calibrated by NNCF on the texts that are timed."""
    return encoded(problem, _compiled(once(BUILD / "openvino-int8", partial(_calibrate, problem)) / "model.xml"))


def encoded(problem: Texts, run: Callable[[Inputs], Any]) -> Work:
    """Return the encoding of texts by a function that computes vectors (texts, tokens, width) of tokens."""
    tokenizer, texts = _tokenizer(problem), problem.texts()

    def encode() -> np.ndarray[Any, Any]:
        vectors: dict[int, Any] = {}
        for members, inputs in _batches(tokenizer, texts):
            seen = inputs["attention_mask"][..., None].astype(np.float32)
            pooled = (run(inputs) * seen).sum(axis=1) / seen.sum(axis=1)
            vectors |= zip(members, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), strict=True)
        return np.stack([vectors[at] for at in range(len(texts))])

    return Work(encode, lambda answer: answer)


def _tokenizer(problem: Texts) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(problem.folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTH)
    return tokenizer


def _batches(tokenizer: Any, texts: list[str]) -> Iterator[tuple[list[int], Inputs]]:
    """Yield the places of texts of similar length, and their inputs, from the longest texts on."""
    ids = [each.ids for each in tokenizer.encode_batch(texts)]
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    for start in range(0, len(order), BATCH):
        members = order[start : start + BATCH]
        inputs = {name: np.zeros((len(members), len(ids[members[0]])), dtype=np.int64) for name in INPUTS}
        for row, at in enumerate(members):
            inputs["input_ids"][row, : len(ids[at])] = ids[at]
            inputs["attention_mask"][row, : len(ids[at])] = 1
        yield members, inputs


def _session(file: Path) -> Callable[[Inputs], Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))[0]


def _compiled(file: Path) -> Callable[[Inputs], Any]:
    _without_telemetry()
    from openvino import Core

    core = Core()
    model = core.compile_model(core.read_model(str(file)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: model(dict(inputs))[0]


def _without_telemetry() -> None:
    """Hide the package by which OpenVINO and NNCF send over the network, from a forked process, what they are used for."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def _exported(problem: Texts) -> Path:
    return once(BUILD / "onnx", partial(_export, problem)) / "model.onnx"


def _export(problem: Texts, folder: Path) -> None:
    """Write model.onnx: vectors of tokens from INPUTS, of any number of texts and tokens."""
    import warnings

    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(problem.folder, attn_implementation="eager").eval()

    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return self.model(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state

    ids = torch.arange(1000, 1032).reshape(2, 16)
    mask = (torch.arange(16) < torch.tensor([[16], [10]])).long()
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, "vectors")}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch names a newer exporter, whose graph ONNX Runtime does not fuse
        torch.onnx.export(
            Tokens().eval(),
            (ids, mask, torch.zeros_like(ids)),
            str(folder / "model.onnx"),
            input_names=list(INPUTS),
            output_names=["vectors"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def _fuse(problem: Texts, folder: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    model = optimize_model(str(_exported(problem)), model_type="bert", num_heads=12, hidden_size=384)
    model.save_model_to_file(str(folder / "model.onnx"))


def _quantize(problem: Texts, folder: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(_exported(problem), folder / "model.onnx", per_channel=True, weight_type=QuantType.QInt8)


def _calibrate(problem: Texts, folder: Path) -> None:
    _without_telemetry()
    import nncf
    from openvino import Core, save_model

    examples = [dict(inputs) for _, inputs in _batches(_tokenizer(problem), Texts().texts())]
    model = Core().read_model(str(_exported(problem)))
    model = nncf.quantize(model, nncf.Dataset(examples), model_type=nncf.ModelType.TRANSFORMER)
    save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
