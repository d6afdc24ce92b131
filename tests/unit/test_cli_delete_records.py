"""`ledgermq topic delete-records`: what its options mean, and what they refuse; without a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from ledgermq.cli.admin.topic import parse_before
from ledgermq.cli.main import build
from ledgermq.client.admin.deletion import chosen_befores
from ledgermq.errors import InvalidRequest, UnknownPartition

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offset", "time", "expected"),
    [
        ("7", None, 7),
        ("latest", None, "end"),
        ("0:5,3:9", None, {0: 5, 3: 9}),
        (None, "7d", NOW - timedelta(days=7)),
        (None, "2026-11-01T07:30", datetime(2026, 11, 1, 7, 30, tzinfo=UTC)),
    ],
)
def test_up_to_where(offset: str | None, time: str | None, expected: object) -> None:
    assert parse_before(offset, time, NOW) == expected


@pytest.mark.parametrize(
    ("offset", "time"),
    [
        (None, None),
        ("1", "1d"),
        ("1d", None),
        ("earliest", None),
        ("-1", None),
        (None, "latest"),
        (None, "5"),
        (None, "0:5"),
        ("", None),
    ],
)
def test_texts_that_are_no_place(offset: str | None, time: str | None) -> None:
    with pytest.raises(InvalidRequest, match="--before"):
        parse_before(offset, time, NOW)


def test_which_partitions_are_meant() -> None:
    assert chosen_befores("end", None, 3) == {0: "end", 1: "end", 2: "end"}
    assert chosen_befores(5, None, 1) == {0: 5}
    assert chosen_befores(5, [2], 3) == {2: 5}
    assert chosen_befores({1: 4}, None, 3) == {1: 4}
    for before, partitions in ((5, None), (5, [0, 1]), ({0: 1}, [0]), ("end", [])):
        with pytest.raises(InvalidRequest):
            chosen_befores(before, partitions, 3)  # type: ignore[arg-type]
    with pytest.raises(UnknownPartition):
        chosen_befores("end", [3], 3)


def test_without_a_yes_nothing_is_asked_of_any_broker() -> None:
    result = CliRunner().invoke(
        build(), ["topic", "delete-records", "t", "--before-offset", "1", "--target", "127.0.0.1:1"], input="n\n"
    )
    assert result.exit_code != 0
    assert "Permanently" in result.output
