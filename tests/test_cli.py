"""The command ``mha``: help, version and ``mha backends``; helpers that run the command in tests."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from conftest import mha
from mha_core.cli.app import app

COMMAND = str(Path(sys.executable).parent / "mha")
PLAIN = {"COLUMNS": "400", "LINES": "50", "TERM": "dumb"}  # messages stay on one line wherever the tests run


def run(*args, stdin=None):
    """Run the command in this process; an exception other than SystemExit would be a traceback, and fails the test."""
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


def test_version():
    assert ok("--version") == f"mha-core {mha.__version__}\n"


def test_help_shows_an_example():
    assert "mha encode --model DIR sentences.txt --similar 3" in ok("encode", "--help")
    commands = ok("--help")
    assert "encode" in commands
    assert "backends" in commands


def test_backends_lists_numpy_without_importing_it():
    code = "import sys; from mha_core.cli.app import app; app(['backends'], standalone_mode=False)"
    code += "; assert 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "numpy" in line)
    for part in ("ready", f"numpy {np.__version__}", "cpu", f"mha-core {mha.__version__}"):
        assert part in row


def test_without_the_cli_extra_the_command_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from mha_core.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "mha: the command needs typer: pip install 'mha-core[cli]'\n"


def test_unusable_backends_are_listed_with_the_reason_and_the_install_command(tmp_path):
    """The library is missing, and the brackets of the install command are not read as markup."""
    (tmp_path / "gone_plugin.py").write_text(
        "from mha_core.plugin import Backend, hookimpl\n"
        "def namespace():\n    import gone_library\n"
        "@hookimpl\ndef mha_backends():\n"
        "    yield Backend('gone', 1, ('gone:Array',), namespace, install=\"pip install 'gone[all]'\")\n"
    )
    info = tmp_path / "gone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mha_core.plugins]\ngone = gone_plugin\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", "mha_core", "backends"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    row, line = (line for line in done.stdout.splitlines() if "gone" in line)
    assert "unavailable" in row and "gone 1.0" in row
    assert line == (
        "gone (gone 1.0): unavailable: ModuleNotFoundError: No module named 'gone_library'; pip install 'gone[all]'"
    )
    assert "ready" in next(line for line in done.stdout.splitlines() if "numpy" in line)
