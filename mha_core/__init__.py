"""Attention on any array library: the mathematics is written once, and plugins add libraries and fast kernels.

Importing this package imports no array library and reads no plugin metadata; both happen on first use.
"""

import sys
import typing

from . import distributed as distributed
from .algebra.biases import Bias, alibi, relative_bias
from .algebra.dropout import weight_dropout
from .algebra.expressions import Mask
from .algebra.int8 import Int8Rows, Int8Weight
from .algebra.masks import array_mask, causal, chunks, key_lengths, packed, prefix, segments, window
from .algebra.state import AttentionState
from .dispatch.backend import set_num_threads
from .dispatch.default import default_backend, set_default_backend
from .dispatch.errors import (
    BackendMismatch,
    BackendUnavailable,
    KernelDivergence,
    KernelUnsupported,
    KernelWarning,
    MhaError,
    PluginApiMismatch,
    UnknownBackend,
    UnknownKernel,
)
from .dispatch.kernels import use_kernel
from .dispatch.selection import backends, use_backend
from .layers.attention import MultiHeadAttention
from .layers.base import Layer
from .layers.cache import DecoderCache, KeyValueCache
from .layers.decoder import Decoder, DecoderLayer
from .layers.encoder import Encoder, EncoderLayer
from .layers.feed_forward import FeedForward
from .layers.files import LayerFileError
from .layers.norm import Identity, LayerNorm, RMSNorm
from .layers.packed_cache import PackedCache
from .layers.residual import Dropout
from .layers.rotary import Rotary
from .ops.attention import (
    attention_state,
    attention_weights,
    merge_states,
    scaled_dot_product_attention,
    self_attention,
)
from .ops.explain import Explanation, explain
from .ops.functional import dropout, embedding, feed_forward, gelu, layer_norm, linear, relu, rms_norm, silu
from .ops.functions import block_mask, from_flex, mask_function, score_function
from .ops.int8 import quantize_rows, quantize_weight
from .ops.losses import cross_entropy
from .ops.multi_head import multi_head_attention
from .ops.positions import rotary, rotary_tables, sinusoidal_positions
from .ops.verify import verify
from .ops.vjp import Gradients, value_and_grad, vjp
from .train.optimiser import OptimiserState
from .train.optimisers import SGD, AdamW
from .train.schedules import warmup_cosine, warmup_linear

__version__ = "0.1.0"

__all__ = [
    "scaled_dot_product_attention",
    "attention_state",
    "merge_states",
    "attention_weights",
    "AttentionState",
    "self_attention",
    "multi_head_attention",
    "causal",
    "window",
    "chunks",
    "prefix",
    "key_lengths",
    "segments",
    "packed",
    "array_mask",
    "mask_function",
    "block_mask",
    "score_function",
    "from_flex",
    "Mask",
    "Bias",
    "alibi",
    "relative_bias",
    "weight_dropout",
    "sinusoidal_positions",
    "rotary",
    "rotary_tables",
    "linear",
    "layer_norm",
    "rms_norm",
    "gelu",
    "relu",
    "silu",
    "embedding",
    "feed_forward",
    "dropout",
    "quantize_rows",
    "quantize_weight",
    "Int8Rows",
    "Int8Weight",
    "vjp",
    "value_and_grad",
    "Gradients",
    "cross_entropy",
    "AdamW",
    "SGD",
    "OptimiserState",
    "warmup_cosine",
    "warmup_linear",
    "Layer",
    "MultiHeadAttention",
    "FeedForward",
    "LayerNorm",
    "RMSNorm",
    "Identity",
    "Rotary",
    "Dropout",
    "EncoderLayer",
    "Encoder",
    "DecoderLayer",
    "Decoder",
    "KeyValueCache",
    "DecoderCache",
    "PackedCache",
    "backends",
    "use_backend",
    "default_backend",
    "set_default_backend",
    "set_num_threads",
    "use_kernel",
    "explain",
    "Explanation",
    "verify",
    "MhaError",
    "UnknownBackend",
    "BackendUnavailable",
    "BackendMismatch",
    "KernelUnsupported",
    "UnknownKernel",
    "KernelDivergence",
    "KernelWarning",
    "PluginApiMismatch",
    "LayerFileError",
]


_OF_TEXTS = frozenset(
    {
        *("TextEncoder", "CrossEncoder", "RankedDocument", "TruncationWarning", "quantize_embeddings", "encode_corpus"),
        *("CorpusReport", "semantic_search", "Hit", "ModelError", "ModelNotFound", "CorpusError", "BadText"),
    }
)


def __getattr__(name: str) -> typing.Never:
    """Say where the names of texts are, which belong to another distribution."""
    message = f"module {__name__!r} has no attribute {name!r}"
    if name in _OF_TEXTS:
        from .dispatch import known

        message += f"; it is mha_text.{name}, of the distribution mha-text: {known.install('mha-text')}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])
