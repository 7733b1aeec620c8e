"""The command ``mha``, run in this process."""

import sys
from pathlib import Path

from typer.testing import CliRunner

from mha_core.cli.app import app

COMMAND = str(Path(sys.executable).parent / "mha")


PLAIN = {"COLUMNS": "400", "LINES": "50", "TERM": "dumb"}  # messages stay on one line wherever the tests run


def run(*args, stdin=None, app=app):
    """Run the command, or another ``app``, in this process.

    An exception other than SystemExit would be a traceback, and fails the test.
    """
    done = CliRunner(env=PLAIN).invoke(app, [str(arg) for arg in args], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def ok(*args, stdin=None):
    """Return standard output of a run that must succeed and print nothing on standard error."""
    done = run(*args, stdin=stdin)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def fails(code, *args, stdin=None):
    """Return the message of a run that must fail; with exit code 1 it is one line, and nothing was printed before it."""
    done = run(*args, stdin=stdin)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    if code == 1:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    return done.stderr
