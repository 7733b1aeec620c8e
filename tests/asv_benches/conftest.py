"""Sample histories, which the tests of the report read."""

import copy
import shutil

import pytest


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


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A repository with commits and results, which tests do not change."""
    from sample_history import planted

    return planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def history(project):
    from tracking import series

    return series.read(project.config)


@pytest.fixture(scope="session")
def machine(history):
    (machine,) = history.machines
    return machine


@pytest.fixture(scope="session")
def eight_commits(tmp_path_factory):
    from sample_history import days

    return days(tmp_path_factory.mktemp("days"))


@pytest.fixture
def small(eight_commits, tmp_path):
    """A repository of eight commits, without results, for one test."""
    project = copy.deepcopy(eight_commits)
    project.root = shutil.copytree(eight_commits.root, tmp_path, dirs_exist_ok=True)
    return project
