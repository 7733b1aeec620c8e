"""The table of cases whose instructions are counted: the problems of ``bench.cases`` in small.

callgrind takes about half a microsecond for a fused multiply-add of eight numbers. The sizes are such that a call takes a
second there at most, and the kernel still has most of its instructions.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..attention import Attention, Packed
from ..dispatch import OPERATIONS, Dispatch
from ..gradients import AttentionStep
from ..layer import Layer, MultiHead
from ..texts import Texts
from ..timing import Work, loaded


class Countable(Protocol):
    """A problem of which instructions are counted."""

    def judge(self) -> Callable[[Any], float | None]:
        """Return a function that raises AssertionError for a wrong answer."""
        ...

    def ours(self, backend: str) -> Work:
        """Return the computation by mha_core on a backend."""
        ...


@dataclass(frozen=True)
class Counted:
    """A problem, and how many calls of it are made."""

    problem: Countable
    warm: int = 2
    """Number of calls before those that are counted. Python 3.11 specialises its bytecode in the first calls."""
    calls: int = 1
    """Number of calls that are counted together."""
    groups: int = 2
    """Number of such groups of calls, of which the least is used: in one of them glibc may join all blocks that were freed
    before, which takes 50,000 instructions. One group is enough for ten million."""
    processes: int = 1
    """Number of processes, which import the library at other addresses. Where objects lie in memory changes mere dispatch by up
    to 6%; of several processes, objects also move between the groups of each."""
    tolerance: float = 0.02
    """Greatest relative difference that counts as none."""


@dataclass(frozen=True)
class SmallLayer(Layer):
    """An encoder layer of any width, with 8 heads and d_ff four times as wide."""

    d_model: int

    @property
    def d_ff(self) -> int:  # type: ignore[override]
        return 4 * self.d_model


@dataclass(frozen=True)
class OneLayer(Texts):
    """Two sentences through the first of the text encoder's layers."""

    def texts(self) -> list[str]:
        """Return a sentence of nine words and one of four."""
        texts = super().texts()
        return [texts[3], texts[7]]

    def judge(self) -> Callable[[Any], float | None]:
        """Return a check of both vectors against float64."""
        with self._cut() as problem:
            return Texts.judge(problem)

    def ours(self, backend: str) -> Work:
        """Return the call of ``mha_text.TextEncoder`` on a backend."""
        with self._cut() as problem:
            return Texts.ours(problem, backend)

    @contextmanager
    def _cut(self) -> Iterator[OneLayer]:
        """Yield the problem with a model of one layer in a temporary folder."""
        from safetensors.numpy import load_file, save_file

        with tempfile.TemporaryDirectory(prefix="mha-") as name:
            folder = Path(name)
            shutil.copytree(self.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors"))
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}), encoding="utf-8")
            others = tuple(f"encoder.layer.{layer}." for layer in range(1, config["num_hidden_layers"]))
            weights = load_file(self.folder / "model.safetensors")
            save_file({name: w for name, w in weights.items() if not name.startswith(others)}, folder / "model.safetensors")
            yield replace(self, model=folder)


@dataclass(frozen=True)
class FirstUse:
    """The import of mha_core and the first use of a backend, in a process that has imported the backend's library."""

    def judge(self) -> Callable[[Any], None]:
        """Return a check that the backend was loaded."""

        def check(answer: Any) -> None:
            assert answer is True, "the backend was not loaded"

        return check

    def ours(self, backend: str) -> Work:
        """Return the import."""

        def call() -> bool:
            import mha_core  # noqa: F401

            return loaded(backend) is not None

        return Work(call, lambda answer: answer)


LENGTHS = (8, 61, 16, 40, 24, 55, 32, 48)

COUNTED: Mapping[str, Counted] = {
    "import and first use": Counted(FirstUse(), warm=0, groups=1),
    "attention 4x4x64x32": Counted(Attention(4, 4, 64, 32)),
    "attention 1x2x256x64": Counted(Attention(1, 2, 256, 64)),
    "attention 1x2x256x64, causal": Counted(Attention(1, 2, 256, 64, causal=True)),
    "window of 64, 1x2x256x64": Counted(Attention(1, 2, 256, 64, window=64), groups=1),
    "grouped queries 1x8x128x32 of 2 heads, causal": Counted(Attention(1, 8, 128, 32, kv_heads=2, causal=True), groups=1),
    "packed, 8 lengths of 8 to 61, 4 heads x 64": Counted(Packed(LENGTHS, 4, 64), groups=1),
    "decode 1x8x1x64, 1024 keys": Counted(Attention(1, 8, 1, 64, keys=1024), warm=10, calls=2),
    "tiny call 1x1x8x8": Counted(Attention(1, 1, 8, 8), warm=100, calls=7, groups=3, processes=3, tolerance=0.01),
    "attention and gradients 1x2x128x64, causal": Counted(AttentionStep(1, 2, 128, 64, causal=True)),
    "multi-head 2x32x128": Counted(MultiHead(2, 32, 128, 8)),
    "encoder layer 2x32x128": Counted(SmallLayer(2, 32, 128)),
    "text encoder of one layer, 2 real sentences": Counted(OneLayer(), warm=1, groups=1),
    **{
        f"dispatch of {operation}": Counted(Dispatch(operation), warm=100, calls=33, groups=3, processes=3, tolerance=0.006)
        for operation in OPERATIONS
    },
}
