"""Logs: structured events through the standard library's logging, so that a program that embeds a broker decides where they go.

`log = get_logger(__name__)`, then `log.info("bundle opened", bundle=3)`. Only a broker process calls `configure_logs`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def get_logger(name: str) -> Any:
    """A structlog logger whose events become records of the standard logger `name`, their values its extras."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """To stderr, everything of this process."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
