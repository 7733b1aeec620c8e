"""The command ``mha``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command; without its extra, say what to install."""
    try:
        from .app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(f"mha: the command needs {missing.name}: pip install 'mha-core[cli]'")
    # what ends a process in an orderly way must also end what it was writing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
