"""Install the wheels of dist in empty environments, and try what they bring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from archives import COMPILED, DIST, WORK, Distribution, built, distributions, output

WITH_LIBRARIES = {"mha-core", "mha-text", "mha-conformance", COMPILED}
"""The distributions whose libraries are installed too; the others bring backends, which are listed without their libraries."""
NOT_FREE_THREADED = {"mha-text", "mha-conformance", "cli"}
"""What needs libraries without wheels for 3.13 with free threads: safetensors 0.8, tokenizers 0.23, pydantic 2.14 (typer's)."""
ATTENTION = """
import numpy as np, mha_core as mha
x = np.random.default_rng(0).normal(size=(2, 4, 6, 8))
weights = np.exp(x @ x.swapaxes(-1, -2) / 8**0.5)
np.testing.assert_allclose(mha.scaled_dot_product_attention(x, x, x), weights / weights.sum(-1, keepdims=True) @ x)
print("attention equals its formula")
"""
NATIVE = """
import numpy as np, mha_core as mha
x = np.ones((1, 2, 64, 32), np.float32)
print(mha.explain(mha.scaled_dot_product_attention, x, x, x))
"""
PROOFS: list[tuple[str, list[str], str]] = [
    ("cli", ["mha", "--version"], "mha-core"),
    ("cli", ["mha", "backends"], "numpy"),
    ("cli", ["mha", "explain", "gelu", "x=2x3"], "x 2x3"),
    (COMPILED, ["python", "-c", NATIVE], "attention: native"),
    ("mha-conformance", ["mha", "conform", "numpy", "--quick", "-k", "test_embedding or test_positions"], " passed"),
    ("cli", ["mha", "new-plugin", "brook"], "mha-brook"),
    ("mha-core", ["python", "-c", ATTENTION], "attention equals its formula"),
    ("mha-text", ["python", "-c", "import mha_text as mt; print(mt.TextEncoder, mt.__file__)"], "site-packages"),
]
"""What each distribution, or mha-core's extra cli, brings: a command, and what it prints among other things."""


def version_of(python: str) -> str:
    """Return the version of a Python, with a t if it is free-threaded."""
    code = "import sys, sysconfig; print(sys.version.split()[0] + 't' * (sysconfig.get_config_var('Py_GIL_DISABLED') or 0))"
    return output(python, "-c", code, echo=False).strip()


def free_threaded(python: str) -> bool:
    """Return whether a Python has free threads: modules are then compiled for its version alone."""
    return version_of(python).endswith("t")


def installs(pythons: list[str]) -> Iterator[str]:
    """Install the wheels in an empty environment of each Python, and try what they bring."""
    for python in pythons:
        try:
            place = WORK / f"python-{version_of(python)}"
            output(python, "-m", "venv", "--clear", place)
            prove(place, NOT_FREE_THREADED if free_threaded(python) else set())
            print(f"  {place.name}: everything works", flush=True)
        except (RuntimeError, ValueError, OSError) as error:
            yield f"{python}: {error}"


def prove(place: Path, without: set[str]) -> None:
    """Install the wheels in an environment, the project's own from dist alone, and run what they bring."""
    own = [each for each in distributions() if built(each) and each.name not in without]
    if not own:
        raise ValueError("dist is empty; run the steps build and wheels first")
    pip: list[str | Path] = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    output(*pip, *(line for each in own if each.name in WITH_LIBRARIES for line in libraries(each, cli="cli" not in without)))
    pip += ["--isolated", "--no-index", "--find-links", DIST]
    if any(each.name == COMPILED for each in own):
        output(*pip, "mha-core[native]")  # as users do
    output(*pip, "--no-deps", *(f"{each.name}=={each.version}" for each in own))
    for words, expected in [(words, expected) for name, words, expected in PROOFS if name not in without]:
        said = output(place / "bin" / words[0], *words[1:], cwd=place)
        if expected not in said:
            raise ValueError(f"{' '.join(words)} does not print {expected!r}:\n{said}")


def libraries(each: Distribution, *, cli: bool) -> Iterator[str]:
    """Yield what a distribution requires that is not of this project; of mha-core with its extra cli, or without."""
    lines = list(each.toml["project"]["dependencies"])
    if cli and each.name == "mha-core":
        lines += each.toml["project"]["optional-dependencies"]["cli"]
    yield from (line for line in lines if not line.startswith("mha-"))
