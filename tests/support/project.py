"""The checkout that the tests are in, and what its Makefile builds there."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHES = ROOT / "asv_benches"
SUPPORT = ROOT / "tests" / "support"
INSTALLED = ROOT / "build" / "backends"
"""The distributions in backends that have a pyproject of their own, and those in third_party, installed by pip."""
PATHS = [ROOT, *(ROOT / name for name in ("backends", "text", "conformance")), SUPPORT, SUPPORT / "texts", INSTALLED]
"""The folders that a program of a test imports from."""
