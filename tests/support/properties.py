"""hypothesis, or substitutes that skip the tests that use it, so that other tests of the same file run without it."""

import needs
import pytest

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    settings.register_profile("tests", deadline=None)  # no test is timed: the machine may be busy
    settings.load_profile("tests")
except ModuleNotFoundError:
    if needs.REQUIRED:
        raise

    class _Anything:
        """A substitute for every strategy."""

        def __getattr__(self, name):
            return lambda *arguments, **options: self

    def given(*strategies, **named):
        return pytest.mark.skip(needs.reason("hypothesis"))

    def settings(**options):
        return lambda test: test

    st = _Anything()

__all__ = ["given", "settings", "st"]
