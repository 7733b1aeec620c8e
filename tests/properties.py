"""hypothesis; where it is not installed, its tests are skipped one by one, and the other tests of their files run."""

import pytest

import needs

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    settings.register_profile("tests", deadline=None)  # no test is timed: the machine may have much else to do
    settings.load_profile("tests")
except ModuleNotFoundError:
    if needs.REQUIRED:
        raise

    class _Anything:
        """Stands for every strategy."""

        def __getattr__(self, name):
            return lambda *arguments, **options: self

    def given(*strategies, **named):
        return pytest.mark.skip(needs.reason("hypothesis"))

    def settings(**options):
        return lambda test: test

    st = _Anything()

__all__ = ["given", "settings", "st"]
