"""The log of a gateway as lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from ledgermq_gateway.logs import JsonLines


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def made(message: object, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"msg": message, "args": arguments, "levelname": "WARNING", "created": 1.5} | extra)
    assert isinstance(record, logging.LogRecord)
    return record


def test_a_line_has_the_text_the_level_the_time_and_what_was_given() -> None:
    assert line_of(made("%d of %s", 3, "a\nb", id="x1", status=200, ms=0.5)) == {
        "event": "3 of a\nb",
        "level": "warning",
        "timestamp": "1970-01-01T00:00:01.500000Z",
        "id": "x1",
        "status": 200,
        "ms": 0.5,
    }


def test_a_record_of_the_present_has_its_time() -> None:
    before = datetime.now(UTC)
    record = logging.getLogger("ledgermq.gateway").makeRecord("ledgermq.gateway", logging.INFO, "", 0, "m", (), None)
    assert before <= datetime.fromisoformat(line_of(record)["timestamp"]) <= datetime.now(UTC)


def test_an_error_comes_with_its_trace() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        found = line_of(made("failed", exc_info=sys.exc_info(), stack_info="a stack"))
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: broken")
    assert found["stack"] == "a stack"


@pytest.mark.parametrize("given", ["\udc80", 2**70, object(), b"\xff"])
def test_what_json_has_no_form_of_loses_no_line(given: object) -> None:
    found = line_of(made("m", odd=given))
    assert found["event"] == "m"
    assert "odd" in found
