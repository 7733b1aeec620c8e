"""A model by its path: read in any process, and only if there is something to encode with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mha_core.shared import backend_without_arrays

from ..models.files import digest_of_files, locate
from ..models.settings import Settings
from ..models.text_encoder import TextEncoder


@dataclass(frozen=True)
class Reader:
    """Reads a model when it is called, in any process of any directory."""

    path_or_repo: str | Path
    backend: str | None = None
    device: Any = None

    @classmethod
    def of(cls, path_or_repo: str | os.PathLike[str], *, backend: str | None = None, device: Any = None) -> Self:
        """Return the reader of a directory, whose path becomes absolute, or of a repository."""
        path = Path(path_or_repo).expanduser()
        return cls(path.absolute() if path.is_dir() else os.fspath(path_or_repo), backend, device)

    def __call__(self) -> TextEncoder:
        """Read the model."""
        return TextEncoder.from_pretrained(self.path_or_repo, backend=self.backend, device=self.device)

    def backend_name(self) -> str:
        """Return the name of the backend on which the model would compute."""
        return str(backend_without_arrays(self.backend).name)

    def digest_of_files(self) -> str:
        """Return the sha256 of the model's files."""
        return digest_of_files(locate(self.path_or_repo))

    def settings(self) -> Settings:
        """Return the settings of the model, without reading its weights."""
        return Settings.read(locate(self.path_or_repo))
