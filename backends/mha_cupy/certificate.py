"""The certificate that the package ships: only kernels that passed on a GPU are chosen automatically.

``mha conform cupy --report backends/mha_cupy/certificates`` writes it on a machine with a GPU. A kernel is certified if the
certificate says that it passed with the CUDA sources of this package. Any other kernel must be named in ``use_kernel``.
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
    """Return the fields ``source`` and ``opt_in`` of ``Kernel`` for a kernel with these sources."""
    files = tuple(sources)
    return {"source": partial(_texts, files), "opt_in": lambda: reason_against(op, name, files, FILE)}


@cache
def reason_against(op: str, name: str, sources: tuple[str, ...], file: Path) -> str:
    """Return why a kernel is not certified by a certificate; "" if it is."""
    certificate, reason = _read(file)
    if reason:
        return reason
    kernel = certificate["kernels"].get((op, name), {})
    if not kernel.get("runs"):
        return "the certificate does not say that it ran on a GPU"
    from hashlib import sha256  # the import takes 3 ms, needed only if there is a certificate

    changed = kernel.get("source") != sha256(_texts(sources).encode()).hexdigest()
    return f"its source has changed since it was certified on {certificate['date']}" if changed else ""


def _texts(sources: tuple[str, ...]) -> str:
    return "".join(map(text, sources))


@cache
def _read(file: Path) -> tuple[dict[str, Any], str]:
    """Return the kernels and the date of the certificate, and why it certifies no kernel ("" if it may certify some)."""
    try:
        written = json.loads(file.read_text("utf-8"))
        kernels = {(kernel["op"], kernel["name"]): kernel for kernel in written["kernels"]}
        date, run = written["date"][:10], [written[key] for key in ("format", "backend", "result", "selection", "quick")]
        missing = sorted(_DTYPES.difference(written["dtypes"]))
    except FileNotFoundError:
        return {}, "no certificate says that it passed on a GPU"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # a broken file must not break the plugin
        return {}, f"{file.name} is not a certificate: {type(error).__name__}: {error}"
    if run != [_FORMAT, "cupy", "passed", "", False]:
        return {}, f"the certificate of {date} does not say that the whole suite passed"
    if missing:
        return {}, f"the certificate of {date} does not cover {', '.join(missing)}"
    return {"kernels": kernels, "date": date}, ""
