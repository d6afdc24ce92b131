"""Log structured events through the standard library's logging, so that a program that embeds a
broker decides where they go.

`log = get_logger(__name__)`, then `log.info("bundle opened", bundle=3)`. Only a broker process
calls `configure_logs`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal, Self

import structlog

from ledgermq.runtime.process.log import get_log

# What this process is (its broker id), and below it the call that is being served. Every line
# that is logged meanwhile carries both.
_process: dict[str, Any] = {}
_call: ContextVar[dict[str, Any]] = ContextVar("ledgermq_call")

# Libraries that log too much, signatures of requests among it.
_QUIET = ("aiohttp", "asyncio", "botocore", "grpc", "py4j", "urllib3")

# No values of a line, but how `logging` shows it.
_OF_LOGGING = ("exc_info", "stack_info", "stacklevel")

_GRPC_CALLS = "grpc._cython.cygrpc"

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Event(str):
    """What a line says. As the message of a log record it is followed by the line's values, for a program that
    embeds a broker: formatters of `logging` print no extras.
    """

    __slots__ = ("_values",)

    def __new__(cls, event: str, values: Mapping[str, Any] | None = None) -> Self:
        return super().__new__(cls, event)

    def __init__(self, event: str, values: Mapping[str, Any] | None = None) -> None:
        self._values = values or {}

    def __str__(self) -> str:
        return " ".join([str.__str__(self), *(f"{name}={_shown(value)}" for name, value in self._values.items())])


def _shown(value: Any) -> str:
    """Return a value as one word, or in quotes."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(" =\"'") else repr(text)


def _as_event(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    values = {name: value for name, value in event.items() if name not in ("event", *_OF_LOGGING)}
    event["event"] = Event(event["event"], values)
    return event


def plain_event(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Take the values out of the text of a line again, where a formatter adds them itself."""
    record = event.get("_record")
    if record is not None and isinstance(record.msg, Event):
        event["event"] = str.__str__(record.msg)
    return event


def get_logger(name: str) -> Any:
    """Return a structlog logger whose events become records of the standard logger `name`, with
    their values as extras, and in the text.
    """
    return structlog.wrap_logger(
        get_log(name),
        processors=[structlog.stdlib.filter_by_level, _as_event, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def follow_process(**ids: Any) -> None:
    """Add these values to every line that `configure_logs` formats from now on."""
    _process.update(ids)


def follow_call(**ids: Any) -> dict[str, Any]:
    """Add these values to every line logged in the calling task, and in the tasks that it starts,
    until the dict is cleared.

    Clear it when the call has ended, because tasks that outlive the call are no part of it.
    """
    _call.set(ids)
    return ids


def current_call() -> dict[str, Any]:
    """Return the values of the call that is being served; none outside of calls."""
    return _call.get({})


def logs_debug(name: str) -> bool:
    """Return whether debug lines are logged, for paths on which even building a line would cost."""
    return logging.getLogger(name).isEnabledFor(logging.DEBUG)


def add_ids(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the ids of the process, and of the call that is being served, to a line."""
    for ids in (_call.get({}), _process):
        for name, value in ids.items():
            event.setdefault(name, value)
    return event


class LostLines(logging.Filter):
    """Log in one line, at level info, that an answer could not be sent because its line was gone. gRPC
    logs it as an error, with a traceback, for each client that goes away during a long poll.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not (record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError"):
            return True
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args, record.exc_info = f"answer not sent, its line is gone: {record.getMessage()}", (), None
        return logging.getLogger().isEnabledFor(logging.INFO)


_LOST_LINES = LostLines()


def configure_logs(log_format: LogFormat, level: LogLevel, *more: logging.Handler) -> None:
    """Log everything of this process to stderr, and to the `more` handlers. May be called again."""
    shared: list[structlog.typing.Processor] = [
        plain_event,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        add_ids,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(_GRPC_CALLS).addFilter(_LOST_LINES)
    logging.basicConfig(handlers=[handler, *more], level=level.upper(), force=True)
