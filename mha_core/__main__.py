"""``python -m mha_core`` is the command ``mha``."""

from .cli import main

main()
