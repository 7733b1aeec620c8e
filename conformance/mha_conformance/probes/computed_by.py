"""The ways to compute an operation in a test: the kernel that is chosen, each kernel of the backend, or the algebra.

A test with the argument ``attention_by``, ``weights_by`` or ``piece_by`` runs once for each of them. A kernel is preferred to
all others whatever its priority and ``opt_in``; calls that it cannot compute go to the next kernel, or to the algebra. A kernel
that computed none of the test's calls has refused, which is neither a failure nor evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core import AttentionState
from mha_core.plugin import Call, Kernel
from mha_core.shared import ALGEBRA, FEATURES, STATE_FEATURES, demanding, imported
from mha_core.shared import attention_algebra as algebra

from ..backend import BackendUnderTest
from ..report.sections import REFUSED_EVERY_CALL
from .recorder import Recording, recorded

Shapes = dict[str, tuple[int, ...]]
LSE = frozenset({"lse"})


@dataclass
class ComputedBy:
    """A kernel by name, the algebra, or what is chosen for each call."""

    op: str
    kernel: Kernel | None = None
    """None: the algebra, or what is chosen."""
    algebra: bool = False
    _recording: Recording | None = None

    def __str__(self) -> str:
        name = "by what is chosen" if self.kernel is None else f"by kernel {self.kernel.name}"
        return "by the algebra" if self.algebra else name

    @property
    def handles(self) -> frozenset[str]:
        """The features that calls may use: those that the kernel declares, or all."""
        return FEATURES[self.op] if self.kernel is None else self.kernel.handles

    @property
    def seen(self) -> list[Call]:
        """The calls for which a kernel was chosen, so far; known only for a kernel."""
        return [] if self._recording is None else self._recording.seen

    def demanded(self) -> AbstractContextManager[None]:
        """Demand it as users do, so that a call that it cannot compute raises KernelUnsupported."""
        name = ALGEBRA if self.algebra else None if self.kernel is None else self.kernel.name
        return nullcontext() if name is None else mha.use_kernel(self.op, name)

    @contextmanager
    def preferred(self) -> Iterator[None]:
        """Let it compute every call that it can; skip the test if calls were seen and it computed none."""
        if self.kernel is None:
            with self.demanded():
                yield
            return
        kernel = with_lse(self.kernel) if self.op == "attention" else self.kernel
        with demanding(alone=True), recorded(kernel, FEATURES[self.op] | STATE_FEATURES | kernel.handles) as self._recording:
            yield
        if self.seen:
            self._recording.assert_given_what_it_declares()
        if self.seen and not self._recording.runs:
            undeclared = {f"does not declare {name}" for call in self.seen for name in call.features - kernel.handles}
            pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted({*self._recording.reasons, *undeclared}))}")

    def attention_shapes(self, backend: BackendUnderTest, dtype: str) -> Shapes:
        """Return shapes of query, key and value that it computes: small ones, or else round ones.

        4 query heads share 2 key heads if it declares ``grouped_query``; values are narrower if it declares ``value_dim``.
        """
        heads = 2 if "grouped_query" in self.handles else 4
        every: list[Shapes] = [
            {"query": (2, 4, queries, width), "key": (2, heads, keys, width), "value": (2, heads, keys, narrow)}
            for queries, keys, width, narrower in ((5, 7, 6, 3), (48, 64, 64, 32))
            for narrow in [narrower if "value_dim" in self.handles else width]
        ]
        return next((shapes for shapes in every if self._computes(backend, dtype, shapes)), every[0])

    def _computes(self, backend: BackendUnderTest, dtype: str, shapes: Shapes) -> bool:
        try:
            with self.demanded():
                mha.explain(self.op, *(backend.array(np.zeros(shape), dtype) for shape in shapes.values()))
        except mha.KernelUnsupported:
            return False
        return True


def with_lse(kernel: Kernel) -> Kernel:
    """Return an attention kernel as one that declares ``lse``: if it does not, its ``out`` with the lse of the algebra."""
    if "lse" in kernel.handles:
        return kernel

    def completed(compute: Callable[..., AttentionState], problem: Any, *arguments: Any) -> AttentionState:
        state = compute(*arguments)
        return state._replace(lse=algebra.attention_state(problem).lse) if "lse" in problem.asked else state

    def attention(problem: Any) -> AttentionState:
        return completed(imported(kernel.load), problem, replace(problem, asked=problem.asked - LSE))

    def prepare(problem: Any) -> Callable[..., AttentionState] | None:
        assert kernel.prepare is not None
        compute = imported(kernel.prepare)(replace(problem, asked=problem.asked - LSE))
        if compute is None:
            return None
        return lambda q, k, v, sink: completed(compute, problem.with_arrays(q, k, v, sink=sink), q, k, v, sink)

    def supports(call: Call) -> str | None:
        assert kernel.supports is not None
        reason: str | None = imported(kernel.supports)(replace(call, features=call.features - LSE))
        return reason

    changes: dict[str, Any] = {"load": attention, "handles": kernel.handles | LSE}
    changes |= {} if kernel.supports is None else {"supports": supports}
    changes |= {} if kernel.prepare is None else {"prepare": prepare}
    return replace(kernel, **changes)
