"""Where `ledgermq consume --from` begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ledgermq.cli.arguments.start import Start, parse_start
from ledgermq.errors import InvalidRequest

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("4711", 4711),
        ("0:15,3:20", {0: 15, 3: 20}),
        ("15m", NOW - timedelta(minutes=15)),
        ("2d", NOW - timedelta(days=2)),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21T07:30:00.5", datetime(2026, 11, 21, 7, 30, 0, 500_000, tzinfo=UTC)),
        ("2026-11-21T07:30+01:00", datetime(2026, 11, 21, 6, 30, tzinfo=UTC)),
        ("2026-11-21T07:30Z", datetime(2026, 11, 21, 7, 30, tzinfo=UTC)),
    ],
)
def test_starts(text: str, start: Start) -> None:
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize(
    "text", ["", "newest", "-5", "0:", "0:1,", "15x", "2026-13-01", "1.5", "99999999999999999999m"]
)
def test_texts_that_are_no_start(text: str) -> None:
    with pytest.raises(InvalidRequest, match="earliest, latest"):
        parse_start(text, NOW)
