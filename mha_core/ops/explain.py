"""``explain``: which kernel a call would run on, and why not on the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from ..algebra.functions import MappedMask
from ..dispatch.context import ALGEBRA, dry_run, watched_by
from ..dispatch.kernels import missing_kernels
from . import attention, functional, multi_head, positions
from .operation import PendingCall
from .vjp import vjp

_NAMED = {
    attention: ("scaled_dot_product_attention", "attention_state", "attention_weights", "self_attention"),
    multi_head: ("multi_head_attention",),
    functional: ("feed_forward", "linear", "layer_norm", "rms_norm", "gelu", "relu", "silu"),
    positions: ("rotary",),
}
OPERATIONS: dict[str, Callable[..., Any]] = {name: getattr(module, name) for module, names in _NAMED.items() for name in names}
OPERATIONS |= {"attention": attention.scaled_dot_product_attention}
"""The operations that ``explain`` knows by name; it also accepts any callable, such as a layer."""


class Rejection(NamedTuple):
    """A kernel that was not chosen, and why."""

    kernel: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """The kernel that one operation would run on, and the reasons against others. ``str`` formats it as a table."""

    op: str
    backend: str
    kernel: str | None = None
    """The name of the kernel; None for the algebra."""
    rejected: tuple[Rejection, ...] = ()
    features: frozenset[str] = frozenset()
    """The features that a kernel must declare to receive the call."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtype: str = ""
    device: str = ""
    calls: tuple[Explanation, ...] = ()
    """The smaller operations that it would call, in order."""
    sent: int | None = None
    """The bytes that this process would send to others; None for an operation of one process."""
    tiles: str = ""
    """The number of tiles of which none, some and all pairs attend, if the mask is a function or has a map."""

    def walk(self) -> Iterator[Explanation]:
        """Yield this operation and all that it would call."""
        yield self
        for call in self.calls:
            yield from call.walk()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str, count: int = 1) -> Iterator[str]:
        times = f" x{count}" if count > 1 else ""
        where = f", {self.dtype}" * bool(self.dtype) + f" on {self.device}" * bool(self.device)
        yield f"{indent}{self.op}{times}: {self.kernel or ALGEBRA} ({self.backend}{where})"
        if self.shapes:
            yield f"{indent}    arrays    " + ", ".join(f"{name} {_by(shape)}" for name, shape in self.shapes)
        if self.sent is not None:
            yield f"{indent}    sends     {self.sent:,} bytes to other ranks"
        if self.features:
            yield f"{indent}    features  " + ", ".join(sorted(self.features))
        if self.tiles:
            yield f"{indent}    tiles     {self.tiles}"
        for kernel, reason in self.rejected:
            yield f"{indent}    not {kernel}: {reason}"
        for call, same in groupby(self.calls):
            yield from call._lines(indent + "  ", len(list(same)))


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def explain(op: str | Callable[..., Any], *args: Any, gradients: bool = False, **options: Any) -> Explanation:
    """Return which backend and kernel a call would run on, and why not on each other kernel, without computing.

    Parameters
    ----------
    op : str or callable
        The name of an operation, such as ``"attention"`` or ``"gelu"``; or a callable made of operations, such as a layer.
    *args, **options : those of the call
        Arguments are checked and kernels are chosen, but nothing is computed. A cache stays as it is.
    gradients : bool
        Whether to explain the gradients by ``vjp`` too.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        For an unknown name. Errors of the call itself are raised too, KernelUnsupported included.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x = np.ones((2, 3), dtype=np.float32)
    >>> print(mha.explain("gelu", x))
    gelu: tiles (numpy, float32 on cpu)
        arrays    x 2x3
    >>> mha.explain("attention", x, x, x, mask=mha.causal()).features
    frozenset({'causal'})
    """
    if isinstance(op, str):
        if op not in OPERATIONS:
            raise ValueError(f"op is {op!r}; expected one of {', '.join(OPERATIONS)}, or a callable such as a layer")
        function = OPERATIONS[op]
    elif callable(op):
        function = op
    else:
        raise TypeError(f"op is {type(op).__name__}; expected the name of an operation, or a callable such as a layer")
    explanations: list[Explanation] = []
    if gradients:
        function = partial(_with_gradients, function)
    with watched_by(_Recorder(explanations)), dry_run():
        function(*args, **options)
    if len(explanations) == 1:
        return explanations[0]
    name = op if isinstance(op, str) else getattr(op, "__name__", type(op).__name__)
    name += " and its gradients" * gradients
    return Explanation(name, explanations[0].backend if explanations else "", calls=tuple(explanations))


def _with_gradients(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    out, pullback = vjp(function, *args, **options)
    pullback(out)


def _rejections(pending: PendingCall) -> Iterator[Rejection]:
    for kernel, reason in pending.decision.rejected:
        yield Rejection(kernel.name, reason)
    for name, reason in missing_kernels(pending.backend.record, pending.call.op):
        yield Rejection(name, reason)


def _tiles(pending: PendingCall) -> str:
    """Return what is known of the tiles of a mask."""
    mask = pending.options["problem"].mask if "problem" in pending.options else pending.options.get("mask")
    if isinstance(mask, MappedMask):
        return ", ".join(f"{share} {count}" for share, count in mask.counts.items())
    if "mask_function" not in pending.call.features:
        return ""
    query, key = (dict(pending.call.shapes)[name] for name in ("query", "key"))
    return f"not known: mha.block_mask(mask, {query[-2]}, {key[-2]}) finds those of which no pair attends"


class _Recorder:
    """Records each operation, and those inside it if the algebra would compute it; computes nothing else."""

    def __init__(self, explanations: list[Explanation]) -> None:
        self.explanations = explanations

    def __call__(self, pending: PendingCall) -> Any:
        call, kernel = pending.call, pending.decision.kernel
        explanation = Explanation(
            op=call.op,
            backend=pending.backend.name,
            kernel=kernel.name if kernel else None,
            rejected=tuple(_rejections(pending)),
            features=call.features,
            shapes=call.shapes,
            dtype=call.dtype_name,
            device="" if call.device is None else str(call.device),
            tiles=_tiles(pending),
        )
        if kernel is not None or not pending.is_composite:
            self.explanations.append(explanation)
            return pending.empty()
        inside: list[Explanation] = []
        with watched_by(_Recorder(inside)):
            result = pending.algebra()
        self.explanations.append(
            replace(explanation, calls=tuple(inside), sent=None if pending.sent is None else pending.sent())
        )
        return result
