"""The log of a gateway: structured lines on stderr, in JSON, or for people where that is a terminal.

    {"event": "request", "level": "info", "timestamp": "2026-11-28T12:10:46.589054Z", "status": 200, …}

Each request has a line. structlog's formatter takes four times as long for one in JSON as `JsonLines`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

import msgspec
import structlog

_OF_EACH_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encoder = msgspec.json.Encoder(enc_hook=repr)


def configure_logs(*, debug: bool) -> None:
    """Log structured lines to stderr: JSON, or for people where it is a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(_for_people())
    else:
        _leave_out_what_no_line_shows()
        handler.setFormatter(JsonLines())
    for name in ("aiohttp", "asyncio", "grpc"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.INFO, force=True)


class JsonLines(logging.Formatter):
    """A line has the text, level and time of a record, and what `extra` gave; `exception` and `stack` if there are."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC),
        } | {name: value for name, value in vars(record).items() if name not in _OF_EACH_RECORD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            return _encoder.encode(line).decode()
        except (UnicodeEncodeError, OverflowError):  # half of a pair of surrogates, or a large number
            return json.dumps(line, default=str)


def _for_people() -> logging.Formatter:
    added: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    shown: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer(),
    ]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=added, processors=shown)


def _leave_out_what_no_line_shows() -> None:
    """Let records of this process be made without their place in the program, thread and process."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
