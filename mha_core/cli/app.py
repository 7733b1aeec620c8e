"""The command ``mha``. Its subcommands are entry points of the group ``mha_core.commands``, from any installed distribution.

Exit codes: 0 success; 1 an error; 2 a usage error; 130 after Ctrl-C; a command may have more.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import mha_core

from ..dispatch import known
from .command import command, failing_clearly
from .tables import printable

DISTRIBUTIONS = {
    "encode": "mha-text",
    "search": "mha-text",
    "attend": "mha-text",
    "backends": "mha-core",
    "explain": "mha-core",
    "conform": "mha-conformance",
    "bench": "mha-conformance",
    "report": "mha-conformance",
    "new-plugin": "mha-core",
}
"""The distribution of each known command, in the order in which the help lists them."""


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """A group of commands, each of which is imported when it is used or listed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._entries = {entry.name: entry for entry in entry_points(group="mha_core.commands")}
        names: dict[str, Any] = dict.fromkeys([*DISTRIBUTIONS, *sorted(self._entries.keys() - DISTRIBUTIONS.keys())])
        self.commands.update(names)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = printable(error.message)  # type: ignore[attr-defined]
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one that is not installed, or cannot be imported, says so in its help and when it is called."""
        if cmd_name not in self.commands:
            return None
        if cmd_name not in self._entries:
            return _unavailable(f"is not installed: {known.install(DISTRIBUTIONS[cmd_name])}")
        try:
            return self._entries[cmd_name].load()
        except ImportError as error:
            return _unavailable(f"cannot be imported from {self._entries[cmd_name].value}: {error}")


def _unavailable(reason: str) -> TyperCommand:
    def fail(ctx: typer.Context) -> None:
        with failing_clearly():
            raise mha_core.MhaError(f"mha {ctx.info_name} {reason}")

    fail.__doc__ = f"({reason.removeprefix('is ')})"
    return command("", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(fail)


app = typer.Typer(
    name="mha",
    cls=Commands,
    help="Attention on any array library: encode texts, inspect and test backends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mha-core {mha_core.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
