"""Tests of error messages, from tables."""

import re

import pytest
from together import for_each


def refusals(cases):
    """Return a test of the calls in ``{error: {message: call}}``, each of which must raise the error with that text in it.

    ``...`` in a message stands for any text.
    """
    table = [(error, message, call) for error, calls in cases.items() for message, call in calls.items()]

    @pytest.mark.parametrize(("error", "message", "call"), table, ids=[message[:60] for _, message, _ in table])
    def test(error, message, call):
        with pytest.raises(error, match=".*".join(map(re.escape, message.split("...")))):
            call()

    return test


def assert_refused_in_words(refused):
    """Assert that each function of ``{message: function}`` raises a TypeError or ValueError with this message."""

    def check(message):
        with pytest.raises((TypeError, ValueError)) as error:
            refused[message]()
        assert str(error.value) == message

    for_each({message: message for message in refused}, check)
