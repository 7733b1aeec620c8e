"""Problems of a covering design on one kernel, each held to all promises that a call can break."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..cases import piece_axes
from ..cases.attention_axes import TRIPLES, axes_of, possible
from ..cases.covering import Covering, Row
from ..cases.designed import Designed, designed
from ..oracle import tolerance
from ..report.evidence import evidence
from .layouts import laid_out
from .pieces import judge_piece

SECONDS, QUICK_SECONDS = 10.0, 1.0
"""Time for the problems of one kernel and dtype."""
PIECE = 0.3
"""The share of this time that a kernel of a piece has."""
REFUSALS = 60
"""A kernel that refuses as many problems, and computes none, refuses all: it may be for another device."""


@dataclass
class Judge:
    """Judges one kernel in one dtype; remembers the last results, which later calls must not change."""

    backend: BackendUnderTest
    kernel: str
    dtype: str
    kept: list[tuple[str, Any, bytes]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    computed: int = 0

    def judge(self, problem: Designed) -> None:
        """Raise AssertionError if out or lse is wrong, differs in a second call, or if an argument or an old result changed."""
        backend, row, dtype = self.backend, problem.row, self.dtype
        made: dict[str, Any] = {}

        def make(x: np.ndarray, to: str = dtype) -> Any:
            array = backend.array(x, to)
            made[f"an array of the options ({len(made)})"] = array = laid_out(backend, array, row["layout"])
            return array

        key_unseen, value_unseen = problem.unseen()
        poisoned = problem.key.copy(), problem.value.copy()
        poisoned[0][key_unseen], poisoned[1][value_unseen] = np.nan, np.inf
        arrays = {
            name: laid_out(backend, backend.array(x, dtype), row["layout"], batch=x.ndim - 3)
            for name, x in zip(("query", "key", "value"), (problem.query, *poisoned), strict=True)
        }
        options = problem.options(make, lambda x: make(x, tolerance.compute_dtype(dtype)))
        everything = arrays | made
        before = {name: backend.numpy(x).copy() for name, x in everything.items()}
        operation: Callable[..., Any] = mha.attention_state if row["lse"] else mha.scaled_dot_product_attention
        try:
            with mha.use_kernel("attention", self.kernel):
                results = [operation(*arrays.values(), **options) for _ in range(2)]
        except mha.KernelUnsupported as error:
            reason = str(error).partition(": it ")[2].partition(";")[0]
            self.refused[reason] = self.refused.get(reason, 0) + 1
            return
        self.computed += 1
        self._assert_kept()
        backend.assert_unchanged(everything, before)
        first, second = (dict(zip(("out", "lse"), x if row["lse"] else (x,), strict=False)) for x in results)
        for name, x in first.items():
            assert backend.numpy(x).tobytes() == backend.numpy(second[name]).tobytes(), (
                f"{name} differs in a second, equal call"
            )
        self._assert_right(first, arrays["query"], problem)
        self.kept = [(str(problem), x, backend.numpy(x).tobytes()) for x in second.values()]

    def _assert_right(self, results: dict[str, Any], query: Any, problem: Designed) -> None:
        backend, dtype = self.backend, self.dtype
        exact = tolerance.exact_attention(
            problem.query,
            problem.key,
            problem.value,
            dtype=dtype,
            rounds_weights=backend.rounds_weights,
            equal_weights=problem.row["scores"] == "tiny" or problem.row["scale"] == 0,
            **problem.oracle,
        )
        backend.assert_like(results["out"], query)
        out = backend.numpy(results["out"])
        tolerance.assert_within("out", out, exact.out, exact.out_bound)
        assert (out[exact.lse == -np.inf] == 0).all(), "a query that sees no key must give exactly 0"
        if "lse" in results:
            backend.assert_like(results["lse"], query, dtype=getattr(backend.xp, tolerance.compute_dtype(dtype)))
            tolerance.assert_within("lse", backend.numpy(results["lse"]), exact.lse, exact.lse_bound)

    def _assert_kept(self) -> None:
        """Results own their memory."""
        for problem, x, bits in self.kept:
            assert self.backend.numpy(x).tobytes() == bits, f"a later call changed the result of: {problem}"


def judge_design(
    backend: BackendUnderTest, kernel: str, handles: frozenset[str], dtype: str, rng: np.random.Generator
) -> Judge:
    """Judge a kernel that declares these features, or the algebra, on the problems of a covering design.

    It ends when all problems were judged, when the time is up, or when the first problems were all refused. A failure has a
    note that describes the problem.
    """
    axes = axes_of(handles, half=dtype in ("float16", "bfloat16"))
    design = Covering(axes, rng, possible=possible, triples=TRIPLES)
    judge = Judge(backend, kernel, dtype)
    end = time.monotonic() + (QUICK_SECONDS if backend.quick else SECONDS)
    for row in design:
        if time.monotonic() > end or (not judge.computed and sum(judge.refused.values()) >= REFUSALS):
            break
        before = judge.computed
        _judge_row(judge, row, rng)
        if judge.computed > before:
            design.count()
    evidence.covered(f"attention by {kernel}", dtype, judge.computed, design.counted, design.combinations)
    return judge


def judge_piece_design(
    backend: BackendUnderTest, op: str, kernel: str, dtype: str, rng: np.random.Generator
) -> tuple[int, list[str]]:
    """Judge a kernel of a piece, or the algebra, on the calls of a covering design.

    Return how many calls it computed, and its reasons for those that it refused.
    """
    design = Covering(piece_axes.axes_of_piece(op), rng, possible=piece_axes.possible)
    refused: list[str] = []
    computed = 0
    end = time.monotonic() + (QUICK_SECONDS if backend.quick else SECONDS) * PIECE
    for row in design:
        if time.monotonic() > end or (not computed and len(refused) >= REFUSALS):
            break
        call = piece_axes.designed_piece(op, row, rng)
        layouts = (row["layout"], row.get("layout of w", "contiguous"), "contiguous")
        try:
            with mha.use_kernel(op, kernel):
                judge_piece(backend, op, call, dtype, layouts=layouts)
            computed += 1
            design.count()
        except mha.KernelUnsupported as error:
            refused.append(str(error).partition(": it ")[2].partition(";")[0])
        except Exception as error:
            error.add_note(f"the call: {', '.join(f'{name}={value}' for name, value in row.items())}")
            raise
    evidence.covered(f"{op} by {kernel}", dtype, computed, design.counted, design.combinations)
    return computed, refused


def _judge_row(judge: Judge, row: Row, rng: np.random.Generator) -> None:
    backend, dtype = judge.backend, judge.dtype
    wide = tolerance.compute_dtype(dtype)
    problem = designed(row, rng, lambda x: backend.rounded(x, dtype), lambda x: backend.rounded(x, wide))
    try:
        judge.judge(problem)
    except Exception as error:
        error.add_note(f"the problem: {problem}")
        raise
