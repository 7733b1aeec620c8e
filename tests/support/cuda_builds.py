"""Compiled CUDA sources, kept in build/cuda of the checkout: a later test run compiles only what has changed."""

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from project import ROOT

FOLDER = ROOT / "build" / "cuda"


def kept(suffix, inputs, build):
    """Return the path of the file that ``build(path)`` writes, and build it unless it is kept for these inputs.

    inputs: every string that the file depends on. Its name is their SHA-256. The file is moved into place in one step, so that
    other processes, such as the workers of pytest-xdist, see all of it or nothing.
    """
    path = FOLDER / f"{sha256(json.dumps(inputs).encode()).hexdigest()}{suffix}"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / path.name
            build(made)
            os.replace(made, path)
    return path


def with_includes(text, folders):
    """Return ``text`` with each ``#include "file"`` replaced by the file, but only once. Files are looked up in ``folders``."""
    done = set()

    def included(match):
        path = next(folder / match[1] for folder in folders if (folder / match[1]).exists())
        if path in done:
            return ""
        done.add(path)
        return expanded(path.read_text("utf-8"))

    def expanded(part):
        return re.sub(r'^[ ]*#include "(.+)"$', included, part, flags=re.MULTILINE)

    return expanded(text)
