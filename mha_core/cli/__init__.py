"""The command-line interface, ``mha``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command; without the extra ``cli``, print what to install."""
    if sys.stdout is None:  # closed by the shell's >&-: what is printed would be lost, and the next file take its number
        sys.exit("mha: standard output is closed; write >/dev/null to discard it")
    try:
        from .app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(f"mha: the command needs {missing.name}: pip install 'mha-core[cli]'")
    # exit normally on SIGTERM, so that unfinished files are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
