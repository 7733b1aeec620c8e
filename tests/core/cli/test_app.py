"""The command ``mha``: help, version, and what to install for it."""

import sys
import types
from importlib.metadata import EntryPoint

import pytest
import typer
from command import fails, ok
from processes import run

from mha_core.cli import app
from mha_core.cli.command import command


def test_without_the_cli_extra_the_command_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from mha_core.cli import main; main()"
    done = run([sys.executable, "-c", code], status=1)
    assert done.stderr == "mha: the command needs typer: pip install 'mha-core[cli]'\n"


@pytest.fixture
def entries(monkeypatch):
    """Return the function that makes these the only entry points of commands."""

    def only(**values):
        points = [EntryPoint(name, value, "mha_core.commands") for name, value in values.items()]
        monkeypatch.setattr(app, "entry_points", lambda group: points)

    return only


def test_a_command_that_is_not_installed_says_what_to_install(entries):
    entries(backends="mha_core.cli.backends:backends_command")
    assert "encode      (not installed: pip install './text[cli]'" in ok("--help")
    for name, folder in (("encode", "text[cli]"), ("conform", "conformance[report]")):
        message = f"error: mha {name} is not installed: pip install './{folder}', in a checkout of mha-core\n"
        assert fails(1, name, "numpy", "--anything", "4") == message


def test_a_command_that_cannot_be_imported_breaks_no_other(entries):
    entries(explain="mha_core.cli.explain:explain_command", bench="no_such_module:bench")
    reason = "cannot be imported from no_such_module:bench: No module named 'no_such_module'"
    assert reason in " ".join(ok("--help").split())
    assert fails(1, "bench") == f"error: mha bench {reason}\n"
    assert "gelu" in ok("explain", "gelu", "x=2x3")


def test_any_distribution_may_add_a_command(entries, monkeypatch):
    @command("Example:  mha greet NAME")
    def greet(name: str) -> None:
        """Greet somebody."""
        typer.echo(f"hello {name}")

    monkeypatch.setitem(sys.modules, "greeting", types.SimpleNamespace(greet=greet))
    entries(greet="greeting:greet")
    assert "Greet somebody." in ok("--help")
    assert ok("greet", "Ada") == "hello Ada\n"
    assert "No such command 'greett'. Did you mean 'greet'?" in fails(2, "greett")
