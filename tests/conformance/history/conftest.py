"""Sample histories, which the tests of the report read."""

import copy
import shutil

import pytest
from sample_history import days, planted

from mha_conformance.history import results


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A repository with commits and results, which tests do not change."""
    return planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def history(project):
    return results.read([project.config.parent])


@pytest.fixture(scope="session")
def machine(history):
    (machine,) = history.machines
    return machine


@pytest.fixture(scope="session")
def eight_commits(tmp_path_factory):
    return days(tmp_path_factory.mktemp("days"))


@pytest.fixture
def small(eight_commits, tmp_path):
    """A repository of eight commits, without results, for one test."""
    project = copy.deepcopy(eight_commits)
    project.root = shutil.copytree(eight_commits.root, tmp_path, dirs_exist_ok=True)
    return project
