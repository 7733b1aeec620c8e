"""What the project's other distributions bring, for messages: nothing here is needed to compute."""

from __future__ import annotations

from functools import cache


@cache
def distributions() -> dict[str, dict[str, str]]:
    """Return each distribution's entry of known.toml."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads((files("mha_core.dispatch") / "known.toml").read_text(encoding="utf-8"))


def install(distribution: str) -> str:
    """Return the command that installs a distribution of this project."""
    return f"{distributions()[distribution]['install']}, in a checkout of mha-core"


def backends() -> dict[str, str]:
    """Return the distribution of each backend that mha-core itself does not contain."""
    return {entry["backend"]: name for name, entry in distributions().items() if "backend" in entry}
