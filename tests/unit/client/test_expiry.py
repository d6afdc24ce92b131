"""When a message expires: what a producer writes, what the settings of a topic add, what a batch says."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from ledgermq.client.consuming.message import Message, messages_of
from ledgermq.client.groups.handlers.retry import Levels, Retry
from ledgermq.client.groups.retries.moves import Move, MovePolicy
from ledgermq.client.groups.retry_topics import DEAD_EXPIRES_MS, copy_of
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.expiry import EXPIRES_MS, NEVER_US, Expiry, TopicTtl, expiries_of, ttl_in_force, with_ttl
from ledgermq.client.messages.record import row_of
from ledgermq.errors import InvalidRecord
from ledgermq.sources import Sources

NOW_US = 1_764_547_200_000_000
S = 1_000_000


def rows_with(*headers: Any, timestamp: int = NOW_US) -> pa.RecordBatch:
    return rows_to_arrow([row_of(b"v", None, each, None, timestamp, 0) for each in headers])


@pytest.mark.parametrize(
    ("ttl", "ms"),
    [(10, 10_000), (0.5, 500), (timedelta(minutes=1), 60_000), (0.0001, 1), (timedelta(microseconds=1500), 2)],
)
def test_a_ttl_becomes_a_header_with_the_time_from_the_records_timestamp_on(ttl: float | timedelta, ms: int) -> None:
    _, _, headers, _, _ = row_of(b"v", None, {"mine": "1"}, None, NOW_US, 0, ttl)
    assert headers == [("mine", b"1"), (EXPIRES_MS, str(NOW_US // 1000 + ms).encode())]


def test_without_a_time_a_ttl_counts_from_now() -> None:
    _, _, headers, timestamp_us, _ = row_of(b"v", None, None, None, None, NOW_US, 1)
    assert (headers, timestamp_us) == ([(EXPIRES_MS, str(NOW_US // 1000 + 1000).encode())], NOW_US)


@pytest.mark.parametrize(
    "ttl", [0, -1, 1e-9, float("nan"), float("inf"), True, "10s", b"1", timedelta(0), timedelta(-1), timedelta.max]
)
def test_what_is_no_ttl_is_refused_by_its_name(ttl: Any) -> None:
    with pytest.raises(InvalidRecord, match="ttl"):
        row_of(b"v", None, None, None, None, NOW_US, ttl)


def test_a_ttl_that_ends_after_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="after the year 9999"):
        with_ttl(None, 9000 * 365 * 86400, NOW_US)


def test_two_times_of_one_record_are_refused() -> None:
    with pytest.raises(InvalidRecord, match=EXPIRES_MS):
        row_of(b"v", None, {EXPIRES_MS: "1"}, None, None, NOW_US, 1)


@pytest.mark.parametrize(
    ("ttl", "own_s", "expires_s"),
    [
        (TopicTtl(10_000, None), None, 10),
        (TopicTtl(10_000, None), 3, 3),
        (TopicTtl(10_000, None), 30, 30),
        (TopicTtl(None, 10_000), None, 10),
        (TopicTtl(None, 10_000), 3, 3),
        (TopicTtl(None, 10_000), 30, 10),
        (TopicTtl(20_000, 10_000), None, 10),
        (TopicTtl(5_000, 10_000), None, 5),
        (TopicTtl(5_000, 10_000), 7, 7),
    ],
)
def test_the_topic_sets_a_default_and_a_longest_time(ttl: TopicTtl, own_s: int | None, expires_s: int) -> None:
    headers = None if own_s is None else [(EXPIRES_MS, str((NOW_US + own_s * S) // 1000))]
    rows = rows_with(headers)
    expected = NOW_US + expires_s * S
    found = expiries_of(rows, ttl)
    assert found is not None
    assert found.to_pylist() == [expected]
    [message] = messages_of(rows, "t", 0, 0)
    at = [expected - 1]
    expiry = Expiry(lambda topic: ttl if topic == "t" else None, lambda: at[0])
    assert not expiry.is_over(message.topic, message.headers, message.timestamp_us)
    at[0] += 1
    assert expiry.is_over(message.topic, message.headers, message.timestamp_us)


def test_a_batch_in_which_nothing_expires_has_no_times() -> None:
    assert expiries_of(rows_with(None, None), None) is None
    assert expiries_of(rows_with(None, {"a": "1"}), None) is None
    assert expiries_of(rows_with({"a": EXPIRES_MS}), None) is None
    assert expiries_of(rows_with({EXPIRES_MS + "x": "1"}), None) is None
    assert ttl_in_force(0, 0) is None


@pytest.mark.parametrize("value", [None, "", "x", "-1", "1.5", " 1", "1" * 16, "\N{SUPERSCRIPT TWO}"])
def test_a_header_that_is_no_time_is_ignored(value: str | None) -> None:
    rows = rows_with({EXPIRES_MS: value})
    assert expiries_of(rows, None) is None
    found = expiries_of(rows, TopicTtl(1000, None))
    assert found is not None
    assert found.to_pylist() == [NOW_US + S]


def test_of_several_times_the_earliest_counts_in_the_row_that_has_it() -> None:
    rows = rows_with(None, [("a", "1"), (EXPIRES_MS, "9"), (EXPIRES_MS, "7"), (EXPIRES_MS, "x")], {"a": "1"}, None)
    times = expiries_of(rows, None)
    assert times is not None
    assert times.to_pylist() == [NEVER_US, 7000, NEVER_US, NEVER_US]
    part = expiries_of(rows.slice(1), None)
    assert part is not None
    assert part.to_pylist() == [7000, NEVER_US, NEVER_US]
    assert expiries_of(rows.slice(2), None) is None


def test_a_record_without_a_timestamp_has_only_its_own_time() -> None:
    rows = rows_with(None, {EXPIRES_MS: "5"})
    without = rows.set_column(3, rows.schema.field("timestamp"), pa.nulls(2, rows.schema.field("timestamp").type))
    times = expiries_of(without, TopicTtl(1000, 1000))
    assert times is not None
    assert times.to_pylist() == [NEVER_US, 5000]


def test_the_largest_settings_and_timestamps_do_not_overflow() -> None:
    largest = TopicTtl(2**62, 2**62)
    times = expiries_of(rows_with(None, timestamp=253_402_300_799_999_999), largest)
    assert times is not None
    assert times[0].as_py() > 253_402_300_799_999_999


# -- copies


def policy_of(**ttls: TopicTtl) -> MovePolicy:
    waits = Retry.levels(3, [10])
    assert isinstance(waits, Levels)
    sources = Sources(lambda: NOW_US, random.Random(1))
    expiry = Expiry(lambda topic: ttls.get(topic.replace(".", "_")), lambda: NOW_US)
    return MovePolicy("g", waits, sources, 10, 1000, expiry, keeps_expired=True)


def headers_of_copy(move: Move) -> dict[str, bytes | None]:
    message, failures, topic, due_ms = move[:4]
    copy = copy_of(message, failures, topic, due_ms, expires_us=move.expires_us)
    assert copy.headers is not None
    pairs = tuple(copy.headers)
    assert len(dict(pairs)) == len(pairs), "each once"
    return dict(pairs)


def message_with(*headers: tuple[str, bytes], topic: str = "t") -> Message:
    return Message(topic, 0, 7, None, b"v", headers, NOW_US - 5 * S, None)


def ms_after(seconds: int) -> bytes:
    return str((NOW_US + seconds * S) // 1000).encode()


def test_a_copy_expires_when_its_original_does_and_when_it_is_moved_again() -> None:
    own = (EXPIRES_MS, ms_after(60))
    policy = policy_of(t=TopicTtl(None, 50_000))
    for message, expires in ((message_with(own), 45), (message_with(), 45)):
        headers = headers_of_copy(policy.move(message, "no"))
        assert headers[EXPIRES_MS] == ms_after(expires)
        copy = message_with(*((name, value or b"") for name, value in headers.items()), topic="g.retry")
        assert headers_of_copy(policy.carried(copy)) == headers
        assert headers_of_copy(policy.move(copy, "no"))[EXPIRES_MS] == ms_after(expires)
    assert EXPIRES_MS not in headers_of_copy(policy_of().move(message_with(), "no"))


def test_a_copy_that_is_carried_does_not_live_longer_than_its_topic_says() -> None:
    policy = policy_of(g_retry=TopicTtl(20_000, None))
    headers = headers_of_copy(policy.move(message_with(), "no"))
    copy = message_with(*((name, value or b"") for name, value in headers.items()), topic="g.retry")
    assert headers_of_copy(policy.carried(copy))[EXPIRES_MS] == ms_after(15)


@pytest.mark.parametrize("dead", ["expired", "refused", "last"])
def test_a_dead_letter_only_notes_when_it_would_have_expired(dead: str) -> None:
    policy = policy_of()
    message = message_with((EXPIRES_MS, ms_after(1)), ("mine", b"1"))
    if dead == "last":
        for _ in range(2):
            headers = headers_of_copy(policy.move(message, "no"))
            message = message_with(*((name, value or b"") for name, value in headers.items()), topic="g.retry")
    move = policy.expired(message) if dead == "expired" else policy.move(message, "no", dead=dead == "refused")
    assert move.is_dead
    headers = headers_of_copy(move)
    assert (headers[DEAD_EXPIRES_MS], headers["mine"]) == (ms_after(1), b"1")
    assert EXPIRES_MS not in headers
