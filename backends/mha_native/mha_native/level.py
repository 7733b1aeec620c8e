"""The compiled module, at the level of vector instructions that the processor has, or that MHA_NATIVE_LEVEL names."""

from __future__ import annotations

import os

from . import _native

LEVEL: str = _native.use_level(os.environ.get("MHA_NATIVE_LEVEL") or None)
"""base (SSE2 or NEON), avx2, avx512, avx512_bf16 or avx512_amx; dotprod, on AArch64 with dot products of bytes."""

native = _native
