"""Write the audit log: who did what, on what, allowed or not, from where.

Every change of topics, groups, rules and tokens is a line, and so is every first use of a right and
every first refusal, per principal and name, since the rules last changed. So reads and writes of
records do not fill the log. Lines are JSON in a separate file (setting `audit_file`), else
ordinary lines of the logger `ledgermq.audit`. No line holds a credential.
"""

from __future__ import annotations

import logging
from pathlib import Path

import structlog

from ledgermq.errors import InvalidConfig
from stateless_broker.logs import add_ids, get_logger

LOGGER = "ledgermq.audit"
NAME_CHARS_MAX = 300

_log = get_logger(LOGGER)


def audit(principal: str, operation: str, name: str, *, allowed: bool, why: str = "") -> None:
    """Write a line; the call that is being served adds its method and connection."""
    write = _log.info if allowed else _log.warning
    write(
        "allowed" if allowed else "refused",
        principal=principal[:NAME_CHARS_MAX],
        operation=operation,
        resource=name[:NAME_CHARS_MAX],
        why=why[:NAME_CHARS_MAX],
    )


def open_audit_file(path: Path | None) -> None:
    """Send the lines to this file, which is appended to; None: to the ordinary log.

    Raises InvalidConfig if the file cannot be opened.
    """
    logger = logging.getLogger(LOGGER)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = path is None
    logger.setLevel(logging.NOTSET if path is None else logging.INFO)
    if path is None:
        return
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"audit_file {path}: {error.strerror or error}") from error
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.ExtraAdder(),
        add_ids,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger.addHandler(handler)
