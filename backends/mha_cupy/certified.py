"""Which kernels were judged on a GPU, exactly as they are: no other is chosen by itself.

``mha conform cupy --report backends/mha_cupy/certificates`` writes the certificate, on a machine with a GPU, and it ships with
the package. A kernel of which it does not say that it passed, with the CUDA sources that are here, is for ``use_kernel`` only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from .launch import text

FILE = Path(__file__).parent / "certificates" / "cupy.json"
_FORMAT = 1
_DTYPES = {"float16", "bfloat16", "float32", "float64"}


def record(op: str, name: str, sources: Iterable[str]) -> dict[str, Any]:
    """What ``Kernel`` is told of a kernel of these sources: ``source``, and ``opt_in`` with its reason."""
    return {"source": partial(_texts, tuple(sources)), "opt_in": against(op, name, sources)}


def certified(op: str, name: str, sources: Iterable[str]) -> bool:
    """Whether the certificate says that a kernel passed, with these files of the folder ``cuda``."""
    return not against(op, name, sources)


def against(op: str, name: str, sources: Iterable[str]) -> str:
    """Why it does not; nothing where it does."""
    found, reason = _read(FILE)
    if reason:
        return reason
    kernel = found["kernels"].get((op, name), {})
    if not kernel.get("runs"):
        return "the certificate does not say that it ran on a GPU"
    from hashlib import sha256  # 3 ms, for a kernel that may be chosen

    changed = kernel.get("source") != sha256(_texts(tuple(sources)).encode()).hexdigest()
    return f"its source is not the one that was judged on {found['date']}" if changed else ""


def _texts(sources: tuple[str, ...]) -> str:
    return "".join(map(text, sources))


@cache
def _read(file: Path) -> tuple[dict[str, Any], str]:
    """What the certificate says of kernels, and why nothing can be read from it."""
    try:
        found = json.loads(file.read_text("utf-8"))
        kernels = {(kernel["op"], kernel["name"]): kernel for kernel in found["kernels"]}
        date, said = found["date"][:10], [found[key] for key in ("format", "backend", "result", "selection", "quick")]
        unjudged = sorted(_DTYPES.difference(found["dtypes"]))
    except FileNotFoundError:
        return {}, "no certificate says that it passed on a GPU"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # it must not break the plugin
        return {}, f"{file.name} is no certificate: {type(error).__name__}: {error}"
    if said != [_FORMAT, "cupy", "passed", "", False]:
        return {}, f"the certificate of {date} does not say that the whole suite passed"
    if unjudged:
        return {}, f"the certificate of {date} does not judge {', '.join(unjudged)}"
    return {"kernels": kernels, "date": date}, ""
