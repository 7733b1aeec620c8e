"""A clone of this project."""

import shutil

import pytest
from sample_history import eight_commits, small  # noqa: F401


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of this project, which is as it was again after each test."""
    from project_clone import Clone

    return Clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """After each test, reset the clone to its first commit, without results."""
    yield
    if "clone" in request.fixturenames:
        there = request.getfixturevalue("clone")
        there.git("reset", "--quiet", "--hard", there.hashes[0])
        del there.hashes[1:]
        for folder in ("results", "facts", "html"):
            shutil.rmtree(there.root / "asv_benches" / folder, ignore_errors=True)
