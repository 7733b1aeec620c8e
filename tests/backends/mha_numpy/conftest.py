"""Fixtures for tests of NumPy's kernels."""

import pytest

from mha_numpy import cores


@pytest.fixture
def each_number_of_threads():
    """The function that yields numbers of threads, each of which is in force until the next one; the default is restored."""

    def each(*counts):
        for count in counts:
            cores.set_num_threads(count)
            yield count

    yield each
    cores.set_num_threads(None)
