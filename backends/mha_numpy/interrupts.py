"""Ctrl-C while threads and the BLAS are counted: it is raised inside of a task, or once the counts are right.

Python raises KeyboardInterrupt between any two instructions of the main thread, also in ``with`` and ``finally``. A handler of
the signal, for the time of a call, can wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

_set: Any = getattr(signal.signal, "__wrapped__", signal.signal)  # in C, so that nothing comes between a call and its effect


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
        """Call the handler from before, if Ctrl-C was pressed."""
        if self.is_pending:
            self.is_pending = False
            self.before(signal.SIGINT, None)

    def compute(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function that Ctrl-C may end. The shield is closed when it returns or raises."""
        try:
            self.deliver()
            self.is_open = True
            function(*args)
            self.is_open = False
        except BaseException:
            self.is_open = False
            raise


def shielded(function: Callable[..., Any], *args: Any) -> None:
    """Call ``function(shield, *args)``, which Ctrl-C ends only inside of ``shield.compute``."""
    is_main = threading.get_ident() == threading.main_thread().ident
    before = signal.getsignal(signal.SIGINT) if is_main else None
    if isinstance(before, Shield):  # a call inside of a task
        was_open, before.is_open = before.is_open, False
        try:
            function(before, *args)
        finally:
            before.is_open = was_open
            if was_open:
                before.deliver()
    elif callable(before):
        shield = Shield(before)
        _set(signal.SIGINT, shield)
        try:
            function(shield, *args)
        finally:
            _set(signal.SIGINT, before)
            shield.deliver()
    else:  # only the main thread receives signals
        function(Shield(), *args)
