"""The options of attention: their names, where signatures show them, and what is said of names that other libraries have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar

from ..algebra.arrays import Array
from ..algebra.biases import Bias
from ..algebra.dropout import WeightDropout
from ..algebra.expressions import Mask
from ..dispatch.errors import did_you_mean


class Options(TypedDict, total=False):
    """The options of every attention operation; all of them combine."""

    mask: Mask | Array | None
    bias: Bias | Array | None
    scale: float | None
    softcap: float | None
    sink: Array | None
    query_offset: int | Array | None
    weight_dropout: WeightDropout | None


NAMES = frozenset(Options.__annotations__)
_MASK = "write mask=, with True where a query attends to a key; numbers to be added are bias="
_PADDING = "write mask=mha.key_lengths(n), or mask=~padding[:, None, None, :]: True attends here"
_ARRAYS_DECIDE = (
    "leave it out: the arrays decide which library computes, and where; convert them by its asarray or from_dlpack, "
    "and a layer by layer.to(backend, device=..., dtype=...)"
)
_HERE = {
    "is_causal": "for causal attention write mask=mha.causal()",
    "causal": "for causal attention write mask=mha.causal()",
    "attn_mask": _MASK,
    "attention_mask": _MASK,
    "src_mask": _MASK,
    "key_padding_mask": _PADDING,
    "src_key_padding_mask": _PADDING,
    **dict.fromkeys(("dropout", "dropout_p"), "write weight_dropout=mha.weight_dropout(rate, seed=...)"),
    "need_weights": "the weights are the result of mha.attention_weights, or of a layer's weights(x)",
    "enable_gqa": "leave it out: fewer key heads than query heads are groups",
    "attn_bias": "write bias=",
    **dict.fromkeys(("window", "window_size"), "write mask=mha.window(left, right)"),
    **dict.fromkeys(("backend", "device", "dtype"), _ARRAYS_DECIDE),
}
"""Hints for the names that torch, Keras, transformers and FlashAttention have, and for those of functions without arrays."""

F = TypeVar("F", bound=Callable[..., Any])


def unknown(names: Iterable[str]) -> TypeError:
    """Return the error for names that are no options."""
    received = list(names)
    expected = f"there is no option {', '.join(received)}; expected {', '.join(Options.__annotations__)}"
    return TypeError(expected + "".join(dict.fromkeys(hint_of(name) for name in received)))


def hint_of(name: str, known: Iterable[str] = tuple(Options.__annotations__)) -> str:
    """Return the end of a message about a name that is not known: what to write, or the known name most like it."""
    return f"; {_HERE[name]}" if name in _HERE else did_you_mean(name, known)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None. Raises TypeError for names that are no options, whatever their value."""
    if not NAMES.issuperset(options):
        raise unknown(name for name in options if name not in NAMES)
    return {name: value for name, value in options.items() if value is not None}


def shows_options(function: F) -> F:
    """Give a function the signature that has each option in place of ``**options``, for help and editors."""
    signature = inspect.signature(function)
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str(kind.__forward_arg__))
        for name, kind in Options.__annotations__.items()
    ]
    parameters = [each for each in signature.parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    function.__signature__ = signature.replace(parameters=[*parameters, *named])  # type: ignore[attr-defined]
    return function
