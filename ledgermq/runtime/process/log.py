"""Log without consequences: what a handler of the program's logging raises ends no work of the client.

`logging.Handler.handle` passes on what `emit` raises, so an error of a handler would come out of the
line that logs. It is printed instead, as `logging.Handler.handleError` does.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from typing import Any

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls raise nothing."""

    @property
    def disabled(self) -> bool:
        """As of a logger; structlog reads it."""
        return self.logger.disabled

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **given: Any) -> None:
        try:
            super().log(level, msg, *args, stacklevel=stacklevel + 1, **given)
        except Exception:
            report()

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return msg, kwargs


def get_log(name: str) -> Log:
    """Return the logger of this name."""
    return Log(logging.getLogger(name), None)


def report() -> None:
    """Print the error that a log handler has raised, unless `logging.raiseExceptions` is off."""
    if logging.raiseExceptions:
        traceback.print_exc()


def ask_levels(names: Iterable[str]) -> None:
    """Have the loggers with these names, and all below them, remember which levels are on.

    A logger that is asked for the first time takes logging's lock. `logging.config` holds this lock while it
    makes handlers; a handler that waits for another thread must not depend on it.
    """
    wanted = tuple(names)
    below = tuple(f"{name}." for name in wanted)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name in wanted or name.startswith(below)):
            for level in _LEVELS:
                logger.isEnabledFor(level)
