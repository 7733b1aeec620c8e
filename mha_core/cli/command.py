"""The common form of help, errors and Ctrl-C in every command of ``mha``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand

import mha_core

from ..dispatch.errors import UnknownDevice
from .tables import prose_console

BackendName = Annotated[
    str | None, typer.Option("--backend", "-b", metavar="NAME", help="A backend that `mha backends` lists, such as numpy.")
]


def command(epilog: str, **options: Any) -> Callable[[Callable[..., None]], TyperCommand]:
    """Make a function a subcommand of ``mha``, with an example below its help, for an entry point of ``mha_core.commands``."""

    def convert(function: Callable[..., None]) -> TyperCommand:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(cls=Command, epilog=epilog, **options)(function)
        return typer.main.get_command(app)  # type: ignore[return-value]

    return convert


class Command(TyperCommand):
    """A command whose help shows names without types of Python, and whole sentences."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for param in self.params:
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]

    def get_short_help_str(self, limit: int = 45) -> str:
        return super().get_short_help_str(limit=1000)  # the whole sentence; click wraps it

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Print errors that a user can fix as one line on standard error, and exit with 1. Warnings are one line too.

    A device that the backend lacks is a wrong argument, ``--device``.
    """
    console = prose_console(stderr=True)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        console.print("[yellow]warning:[/yellow]", escape(str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except KeyboardInterrupt as stopped:
            console.print(escape(str(stopped)) or "interrupted")
            raise typer.Exit(130) from stopped  # as shells report a process that Ctrl-C ends
        except BrokenPipeError:
            raise  # click exits quietly when a reader such as head has closed the pipe
        except UnknownDevice as error:
            raise typer.BadParameter(error.in_command, param_hint="--device") from error
        except (mha_core.MhaError, OSError, UnicodeError, ModuleNotFoundError) as error:
            console.print("[red]error:[/red]", _message(error))
            raise typer.Exit(1) from error


def _message(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        said = str(error)
        return escape(said if "pip install" in said else f"{said}: pip install 'mha-core[cli]'")
    return escape(str(error))
