"""`ledgermq delayed …`, and `ledgermq produce` with a delay, against a broker that keeps delayed records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import ledgermq
from ledgermq.cli.main import build
from ledgermq.cli.messages import delayed, produce
from ledgermq.cli.messages.delayed import Delay, parse_delay
from ledgermq.cli.messages.sent import DELAYED_MAX
from ledgermq.client.messages.due import LEVELS
from ledgermq.client.messages.handles import handle_of, request_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.sources import Sources
from tests.unit.client.delayed_broker import DelayedBroker
from tests.unit.client.hostile import ADDRESS

NOW_US = 1_764_547_200_000_000
"""2025-12-01T00:00:00Z, at which the clocks stand still."""
SECOND_US = 1_000_000
DUE = "2025-12-01T00:01:00.000Z"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> DelayedBroker:
    broker = DelayedBroker()
    settings = ClientSettings(timeout_s=1, attempt_timeout_s=1)

    @asynccontextmanager
    async def connected(target: str, timeout_s: float, **_: Any) -> AsyncIterator[ledgermq.Client]:
        async with ledgermq.Client(broker, [ADDRESS], settings, Sources(now_us=lambda: NOW_US)) as client:
            yield client

    class Session:
        client: ledgermq.Client
        expired = False

    @asynccontextmanager
    async def connected_session(target: str, timeout_s: float, **_: Any) -> AsyncIterator[Session]:
        async with connected(target, timeout_s) as client:
            session = Session()
            session.client = client
            yield session

    monkeypatch.setattr(delayed, "connected", connected)
    monkeypatch.setattr(produce, "connected_session", connected_session)
    return broker


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner(env={"LEDGERMQ_TARGET": None, "COLUMNS": "300"}).invoke(build(), arguments, input=stdin)


def printed(*arguments: str, stdin: str = "") -> Any:
    done = run(*arguments, "--output", "json", stdin=stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# -- produce


@pytest.mark.parametrize(
    ("options", "due_us"),
    [
        (("--delay", "1m"), NOW_US + 60 * SECOND_US),
        (("--delay-level", "5"), NOW_US + 60 * SECOND_US),
        (("--deliver-at", "2025-12-01T01:01+01:00"), NOW_US + 60 * SECOND_US),
    ],
)
def test_records_are_delayed_and_their_handles_printed(
    broker: DelayedBroker, options: tuple[str, ...], due_us: int
) -> None:
    found = printed("produce", "t", "--partition", "1", *options, stdin="a\nb\n")
    dues_us = [due for block in broker.blocks for due in block.dues_us]
    assert len(dues_us) == 2
    assert all(due_us <= found_us < due_us + 59 * SECOND_US for found_us in dues_us), "the clock goes on meanwhile"
    assert found["records"] == 2
    assert found["partitions"] == [{"partition": 1, "records": 2, "first_offset": None, "last_offset": None}]
    minute = DUE.removesuffix("00.000Z")
    assert [(row["due"].startswith(minute), row["topic"], row["partition"]) for row in found["delayed"]] == [
        (True, "t", 1)
    ] * 2
    assert [request_of(row["handle"]).due_us for row in found["delayed"]] == dues_us


def test_the_first_handles_are_printed_only(broker: DelayedBroker) -> None:
    found = printed("produce", "t", "--delay", "1m", stdin="v\n" * (DELAYED_MAX + 7))
    assert (found["records"], len(found["delayed"])) == (DELAYED_MAX + 7, DELAYED_MAX)


def test_records_without_a_delay_have_no_handles(broker: DelayedBroker) -> None:
    assert "delayed" not in printed("produce", "t", stdin="a\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--delay", "1m", "--delay-level", "5"), "only one of --delay, --deliver-at and --delay-level"),
        (("--delay", "soon"), "give a number and its unit"),
        (("--delay", "367d"), "between 0 and 366 days"),
        (("--deliver-at", "tomorrow"), "give a time"),
        (("--delay-level", "19"), "less than or equal to 18"),
    ],
)
def test_a_wrong_delay_is_wrong_usage(broker: DelayedBroker, options: tuple[str, ...], says: str) -> None:
    done = run("produce", "t", *options, stdin="a\n")
    assert (done.exit_code, says in done.output) == (2, True), done.output
    assert not broker.blocks


def test_times_are_utc_by_default() -> None:
    assert parse_delay(None, "2026-12-01T08:00", None) == Delay(None, datetime(2026, 12, 1, 8, tzinfo=UTC))
    assert parse_delay("1.5h", None, None) == Delay(timedelta(minutes=90))
    assert parse_delay(None, None, len(LEVELS)) == Delay(None, None, 18)
    with pytest.raises(InvalidRequest, match="UTC by default"):
        parse_delay(None, "08:00", None)


# -- list


def answer(**more: Any) -> pb.ListDelayedResponse:
    due_us = NOW_US + 60 * SECOND_US
    message = pb.DelayedMessage(topic="t", topic_id=1, offset=3, row=2, due_us=due_us, size_bytes=7, key=b"k\xff")
    part = pb.DelayedRange(from_us=NOW_US, to_us=due_us, messages=5, size_bytes=50)
    summary = pb.DelayedSummary(
        messages=6, size_bytes=57, next_due_us=due_us, watermark_us=NOW_US, now_us=NOW_US, trouble="no store time"
    )
    return pb.ListDelayedResponse(messages=[message], left=2, ranges=[part], summary=summary, **more)


def test_waiting_messages_are_listed(broker: DelayedBroker) -> None:
    broker.lists = {1: answer()}
    found = printed("delayed", "list", "--topic", "t", "--max", "5")
    handle = handle_of(pb.RecallDelayedRequest(topic="t", topic_id=1, offset=3, row=2, due_us=NOW_US + 60 * SECOND_US))
    assert found["more_messages"] == 2
    assert found["messages"] == [
        {"due": DUE, "topic": "t", "partition": 0, "bundle": 1, "key": "k\\xff", "bytes": 7, "handle": handle}
    ]
    start = "2025-12-01T00:00:00.000Z"
    assert found["bundles"] == [
        {
            "bundle": 1,
            "messages": 6,
            "bytes": 57,
            "next_due": DUE,
            "delivered_to": start,
            "now": start,
            "trouble": "no store time",
        }
    ]
    assert found["later"] == [{"bundle": 1, "from": start, "to": DUE, "messages": 5, "bytes": 50}]
    assert [(call.bundle, call.topic, call.max_messages) for call in broker.listed] == [(1, "t", 5), (2, "t", 5)]
    table = run("delayed", "list").stdout
    assert handle in table
    assert "no store time" in table


def test_nothing_that_waits_is_a_note(broker: DelayedBroker) -> None:
    done = run("delayed", "list")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "No delayed message is waiting.\n")


def test_a_bundle_that_does_not_answer_is_named(broker: DelayedBroker) -> None:
    broker.lists = {1: Unavailable("the bundle moves"), 2: answer()}
    done = run("delayed", "list")
    assert done.exit_code == 3
    assert "bundle 1 has not answered, and is missing here: UNAVAILABLE" in done.stderr


# -- recall


def handles(*rows: int) -> list[str]:
    messages = [pb.RecallDelayedRequest(topic="t", topic_id=1, row=row, due_us=NOW_US) for row in rows]
    return [handle_of(message) for message in messages]


@pytest.mark.parametrize(("rows", "code"), [((0,), 0), ((0, 1), 7), ((1, 2, 0), 8)])
def test_the_exit_code_says_whether_all_were_recalled(broker: DelayedBroker, rows: tuple[int, ...], code: int) -> None:
    broker.outcomes = {(0, 0, 1): pb.TOO_LATE, (0, 0, 2): pb.FORGOTTEN}
    done = run("delayed", "recall", *handles(*rows), "--output", "json")
    assert done.exit_code == code
    names = ["recalled", "too late", "forgotten"]
    assert [row["outcome"] for row in json.loads(done.stdout)["messages"]] == [names[row] for row in rows]


def test_a_mistyped_handle_recalls_nothing(broker: DelayedBroker) -> None:
    done = run("delayed", "recall", *handles(0), "d1.mistyped")
    assert (done.exit_code, "not the handle" in done.stderr) == (2, True)
    assert not broker.recalls


def test_what_was_recalled_before_an_error_is_shown(broker: DelayedBroker) -> None:
    gone = handle_of(pb.RecallDelayedRequest(topic="t", topic_id=1, partition=9))
    done = run("delayed", "recall", *handles(0), gone)
    assert (done.exit_code, "UNKNOWN_PARTITION" in done.stderr) == (4, True)
    assert "recalled" in done.stdout
