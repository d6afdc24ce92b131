"""The audit log: one line for the decisions of one call, and a bound on the lines of a source."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ledgermq_broker.access.audit import log as audit_log
from ledgermq_broker.access.audit.log import LOGGER, UNKNOWN, audit, call_audit
from ledgermq_broker.access.audit.sums import LINES_MAX, LINES_PER_SOURCE, MINUTE_S, SUMS_MAX
from ledgermq_broker.logs import follow_call
from tests.virtual_time import virtual


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def named(self, event: str) -> list[Any]:
        return [record for record in self.records if record.msg == event]


@pytest.fixture
def lines() -> Any:
    handler = Lines()
    logger = logging.getLogger(LOGGER)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@virtual
async def test_refusals_of_one_call_are_one_line(lines: Lines) -> None:
    with call_audit():
        for number in range(5000):
            audit("user:a", "describe", f"t{number}", allowed=False, why="no rule")
        audit("user:a", "describe", "own", allowed=True)
    refused, allowed = lines.named("refused"), lines.named("allowed")
    assert [(line.resource, line.count) for line in refused] == [("t0", 5000)]
    assert refused[0].more == [f"t{number}" for number in range(1, 11)]
    assert [line.resource for line in allowed] == ["own"]


@virtual
async def test_what_was_allowed_is_written_before_it_is_done(lines: Lines) -> None:
    async def done(request: int) -> int:
        assert len(lines.named("allowed")) == 1
        return request

    with call_audit() as gathered:
        audit("user:a", "delete", "t", allowed=True, change=True)
        assert await gathered.before(done)(7) == 7
    assert len(lines.records) == 1


@virtual
async def test_a_source_has_some_lines_a_minute_and_a_sum(lines: Lines) -> None:
    follow_call(connection="ipv4:10.0.0.7:51000")
    for _ in range(5000):
        audit(UNKNOWN, "admission", "", allowed=False, why="no credential")
    audit("user:b", "produce", "t", allowed=False)
    assert len(lines.named("refused")) == LINES_PER_SOURCE + 1, "another source has its own lines"
    await asyncio.sleep(MINUTE_S + 1)
    sums = lines.named("summed")
    assert [(line.source, line.refused) for line in sums] == [("ipv4:10.0.0.7", 5000 - LINES_PER_SOURCE)]
    audit(UNKNOWN, "admission", "", allowed=False, why="no credential")
    assert len(lines.named("refused")) == LINES_PER_SOURCE + 2, "the next minute has lines again"


@virtual
async def test_many_sources_have_a_bound_together_and_each_refusal_is_counted(lines: Lines) -> None:
    for source in range(2000):
        for _ in range(3):
            audit(f"user:{source}", "produce", "t", allowed=False)
    assert len(lines.named("refused")) <= LINES_MAX
    audit_log._sums.end_minute()
    assert len(lines.named("summed")) <= SUMS_MAX + 1
    assert len(lines.named("refused")) + sum(line.refused for line in lines.named("summed")) == 6000


@virtual
async def test_a_change_always_has_its_line(lines: Lines) -> None:
    for number in range(3 * LINES_PER_SOURCE):
        audit("user:a", "create", f"t{number}", allowed=True, change=True)
    assert len(lines.named("allowed")) == 3 * LINES_PER_SOURCE
