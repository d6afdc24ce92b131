"""Write the audit log: who did what, on what, allowed or not, from where.

Every change of topics, groups, rules and tokens is a line, and so is every first use of a right and
every first refusal, per principal and name, since the rules last changed. So reads and writes of
records do not fill the log. Decisions of one call that differ only in their names are one line with
a count. A source, which is a principal or the host of a caller without one, gets some lines a
minute, and one more with the sum of all others (`audit_sums`); each change has
a separate line. Lines are JSON in a separate file (setting `audit_file`), else ordinary lines of the logger
`ledgermq.audit`. No line holds a credential.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import structlog

from ledgermq.errors import InvalidConfig
from ledgermq_broker.access.audit.sums import AuditSums, Decision, Sum
from ledgermq_broker.logs import add_ids, current_call, get_logger, plain_event

LOGGER = "ledgermq.audit"
NAME_CHARS_MAX = 300
NAMES_SHOWN_MAX = 10
"""Further names in one line."""
UNKNOWN = "unknown"
"""The principal of a caller that was not admitted."""

T = TypeVar("T")
A = TypeVar("A")

_log = get_logger(LOGGER)
_gathered: ContextVar[CallAudit | None] = ContextVar("ledgermq_call_audit")


def audit(principal: str, operation: str, name: str, *, allowed: bool, why: str = "", change: bool = False) -> None:
    """Log a decision; the call that is being served adds its method and connection. `change`: of a call that
    changes something.
    """
    decision = Decision(
        principal[:NAME_CHARS_MAX], operation, allowed, change and allowed, name[:NAME_CHARS_MAX], why[:NAME_CHARS_MAX]
    )
    gathered = _gathered.get(None)
    if gathered is None:
        _write(decision, [])
    else:
        gathered.add(decision)


class CallAudit:
    """Gather the decisions of one call, or of one frame of a stream, so that those of one kind are one line."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, bool, bool], tuple[Decision, list[str]]] = {}

    def add(self, decision: Decision) -> None:
        kind = (decision.principal, decision.operation, decision.allowed, decision.change)
        first = self._found.get(kind)
        if first is None:
            self._found[kind] = (decision, [])
        else:
            first[1].append(decision.name)

    def write(self) -> None:
        found, self._found = self._found, {}
        for decision, more in found.values():
            _write(decision, more)

    def before(self, call: Callable[[T], Awaitable[A]]) -> Callable[[T], Awaitable[A]]:
        """Return the call, which writes the lines first: they say what was allowed before it is done."""

        async def written_first(request: T) -> A:
            self.write()
            return await call(request)

        return written_first


@contextmanager
def call_audit() -> Iterator[CallAudit]:
    """Gather the decisions that are made inside; write them at the end."""
    gathered = CallAudit()
    token = _gathered.set(gathered)
    try:
        yield gathered
    finally:
        _gathered.reset(token)
        gathered.write()


def _write(decision: Decision, more: Sequence[str]) -> None:
    """Write a line, unless its source has had its lines of this minute. `more`: further names of the same kind."""
    if not decision.change and not _sums.may_write(_source_of(decision), decision, 1 + len(more)):
        return
    write = _log.info if decision.allowed else _log.warning
    count = {"count": 1 + len(more), "more": list(more[:NAMES_SHOWN_MAX])} if more else {}
    write(
        "allowed" if decision.allowed else "refused",
        principal=decision.principal,
        operation=decision.operation,
        resource=decision.name,
        why=decision.why,
        **count,
    )


def _source_of(decision: Decision) -> str:
    if decision.principal != UNKNOWN:
        return decision.principal
    call = current_call()
    connection: str = call.get("connection", "")
    return call.get("client") or connection.rpartition(":")[0] or UNKNOWN


def _write_sum(source: str, sums: Sum) -> None:
    _log.warning(
        "summed",
        source=source,
        refused=sums.refused,
        allowed=sums.allowed,
        last=f"{sums.last.principal} {sums.last.operation} {sums.last.name}".strip(),
        why=sums.last.why,
    )


_sums = AuditSums(_write_sum)


def open_audit_file(path: Path | None) -> None:
    """Send the lines to this file, which is appended to; None: to the ordinary log. A new file may be read by the
    broker's user only: names of principals and topics are in it.

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
        path.touch(mode=0o600)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"audit_file {path}: {error.strerror or error}") from error
    shared: list[structlog.typing.Processor] = [
        plain_event,
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
