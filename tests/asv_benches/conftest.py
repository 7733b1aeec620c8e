"""Sample histories, which the tests of the report read."""

import pytest


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


@pytest.fixture
def small(tmp_path):
    """A repository of eight commits, without results."""
    from sample_history import days

    return days(tmp_path)
