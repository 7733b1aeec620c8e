"""Sample histories, which the tests of the report read."""

import pytest
from sample_history import eight_commits, planted, small  # noqa: F401

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
