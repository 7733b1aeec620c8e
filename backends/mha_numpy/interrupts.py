"""Ctrl-C while threads and the BLAS are counted: it is raised inside of a task, or once the counts are right.

Python raises KeyboardInterrupt between any two instructions of the main thread, also in ``with`` and ``finally``. A handler of
the signal, for the time of a call, can wait.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

# the functions in C that signal wraps: nothing comes between a call and its effect, and a call takes a tenth of the time
_set: Any = _signal.signal
_get: Any = _signal.getsignal
_main = threading.main_thread().ident


class Shield:
    """A handler of SIGINT. While ``is_open``, Ctrl-C goes to the handler from before, which may raise; it closes the shield."""

    def __init__(self, before: Any = None) -> None:
        self.is_open = self.is_pending = False
        self.before = before

    def __call__(self, number: int, frame: Any) -> None:
        self.is_pending = True
        if self.is_open:
            self.is_open = False
            self.deliver()
            self.is_open = True

    def deliver(self) -> None:
        """Call the handler from before, since Ctrl-C was pressed."""
        self.is_pending = False
        self.before(signal.SIGINT, None)

    def compute(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function that Ctrl-C may end. The shield is closed when it returns or raises."""
        try:
            if self.is_pending:
                self.deliver()
            self.is_open = True
            function(*args)
            self.is_open = False
        except BaseException:
            self.is_open = False
            raise


def shielded(function: Callable[..., Any], *args: Any) -> None:
    """Call ``function(shield, *args)``, which Ctrl-C ends only inside of ``shield.compute``."""
    before = _get(signal.SIGINT) if threading.get_ident() == _main else None
    if isinstance(before, Shield):  # a call inside of a task
        was_open, before.is_open = before.is_open, False
        try:
            function(before, *args)
        finally:
            before.is_open = was_open
            if was_open and before.is_pending:
                before.deliver()
    elif callable(before):
        shield = Shield(before)
        _set(signal.SIGINT, shield)
        try:
            function(shield, *args)
        finally:
            if _get(signal.SIGINT) is shield:  # the handler from before may have set another
                _set(signal.SIGINT, before)
            if shield.is_pending:
                shield.deliver()
    else:  # only the main thread receives signals
        function(Shield(), *args)


def _note_main_thread() -> None:
    """Note the main thread of a forked process, which is the one that forked it."""
    global _main
    _main = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_main_thread)
