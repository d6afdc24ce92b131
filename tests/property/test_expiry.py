"""A reader gets exactly the messages that have not expired when it takes them, whatever their times to
live, the settings of the topic, and the way in which it reads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.consuming.expiring import SKIPPED_MAX, ExpiringRun
from ledgermq.client.consuming.message import Message, messages_of
from ledgermq.client.consuming.reading import DecodedRun, Reading, Reports
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import EXPIRES_MS, TopicTtl, expiries_of, own_expiry_us
from ledgermq.client.messages.record import row_of
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources

S = 1_000_000
EPOCH_US = 1_764_547_200 * S
BASE = 7

OTHERS = st.lists(
    st.tuples(st.sampled_from(["a", EXPIRES_MS + "x"]) | st.just(EXPIRES_MS), st.binary(max_size=3)), max_size=2
)
RECORDS = st.builds(
    lambda age_s, ttl_s, others: row_of(
        b"v",
        None,
        [*others, *([(EXPIRES_MS, str(EPOCH_US // 1000 + (ttl_s - age_s) * 1000))] if ttl_s is not None else [])],
        None,
        EPOCH_US - age_s * S,
        0,
    ),
    st.integers(0, 20),
    st.none() | st.integers(1, 40),
    OTHERS,
)
TTLS = st.none() | st.builds(TopicTtl, st.none() | st.integers(1, 40_000), st.none() | st.integers(1, 40_000))
STEPS = st.lists(
    st.tuples(st.sampled_from(["one", "take", "arrow"]), st.integers(1, 6), st.integers(0, 8)), max_size=40
)


@dataclass
class World:
    """`passed`: offsets in the order in which they were taken or skipped."""

    now_us: int = EPOCH_US
    passed: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    left_out_at_end: range = range(0)

    def taken(self, reading: Reading, first: int, end: int) -> None:
        assert reading.position >= end
        self.passed += range(first, end)

    def expired(self, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> None:
        assert 0 < rows.num_rows == len(offsets) <= SKIPPED_MAX
        assert reading.position == offsets[-1] + 1
        self.passed += offsets
        self.skipped += offsets

    def went_past(self, reading: Reading, first: int, end: int) -> None:
        """What the filter has left out at the end of the batch."""
        assert self.passed[-1] + 1 == first < end == reading.position
        self.left_out_at_end = range(first, end)


def expires_us(message: Message, ttl: TopicTtl | None) -> float:
    """The rule, for one message."""
    own_us = own_expiry_us(message.headers)
    assert message.timestamp_us is not None
    found = own_us if ttl is None else ttl.expires_us(own_us, message.timestamp_us)
    return float("inf") if found is None else found


def run_of(world: World, rows: pa.RecordBatch, ttl: TopicTtl | None, kept: list[int]) -> DecodedRun[Message]:
    """`kept`: the rows that a filter lets pass."""
    reading = Reading(TopicPartition("t", 0), 1, BASE, Backoff(Sources(lambda: 0, random.Random(1)), 0.1, 1))

    def made(reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> list[Message]:
        return messages_of(rows, *reading.partition, offsets)

    end = BASE + rows.num_rows
    offsets = range(BASE, end) if len(kept) == rows.num_rows else [BASE + row for row in kept]
    rows = rows.take(pa.array(kept, pa.int64()))
    reports = Reports(world.taken, world.went_past)
    times = expiries_of(rows, ttl)
    if times is None:
        return DecodedRun(reading, rows, offsets, end, made, reports)
    return ExpiringRun(reading, rows, offsets, end, made, reports, times, lambda: world.now_us, world.expired)


@given(st.lists(RECORDS, min_size=1, max_size=25), TTLS, STEPS, st.sets(st.integers(0, 24)))
def test_what_is_returned_has_not_expired_and_what_is_skipped_has(
    records: list[tuple[bytes, None, list[tuple[str, bytes | None]], int, None]],
    ttl: TopicTtl | None,
    steps: list[tuple[str, int, int]],
    left_out: set[int],
) -> None:
    rows = rows_to_arrow(list(records))
    kept = [row for row in range(rows.num_rows) if row not in left_out] or [0]
    messages = {message.offset: message for message in messages_of(rows, "t", 0, BASE)}
    messages = {BASE + row: messages[BASE + row] for row in kept}
    world = World()
    run = run_of(world, rows, ttl, kept)
    got: list[Message] = []
    for way, count, pause_s in [*steps, ("take", 100, 0), ("take", 100, 0)]:
        world.now_us += pause_s * S
        before = len(world.skipped)
        if way == "one":
            one = run.take_one()
            new = [] if one is None else [one]
        elif way == "take":
            new = run.take(count)
        else:
            table = run.take_arrow(count)
            new = [messages[offset] for offset in table.column("offset").to_pylist()]
            assert table.column("value").to_pylist() == [message.value for message in new]
        assert len(new) <= count
        assert all(expires_us(message, ttl) > world.now_us for message in new)
        skipped = [messages[offset] for offset in world.skipped[before:]]
        assert all(expires_us(message, ttl) <= world.now_us for message in skipped)
        assert new == [messages[message.offset] for message in new]
        got += new
    assert run.spent
    assert world.passed == list(messages), "each once, in order"
    assert list(world.left_out_at_end) == list(range(BASE + kept[-1] + 1, BASE + rows.num_rows))
    assert run.reading.position == BASE + rows.num_rows
    assert sorted([*(message.offset for message in got), *world.skipped]) == list(messages)


@given(st.lists(RECORDS, min_size=1, max_size=25), TTLS, st.integers(0, 24))
def test_the_times_of_a_batch_are_those_of_its_messages(
    records: list[tuple[bytes, None, list[tuple[str, bytes | None]], int, None]], ttl: TopicTtl | None, start: int
) -> None:
    rows = rows_to_arrow(list(records)).slice(min(start, len(records) - 1))
    expected = [expires_us(message, ttl) for message in messages_of(rows, "t", 0, 0)]
    times = expiries_of(rows, ttl)
    if times is None:
        assert set(expected) == {float("inf")}
    else:
        assert [min(each, 2**62) for each in expected] == times.to_pylist()


def test_nothing_more_is_skipped_or_returned_after_the_reading_was_moved() -> None:
    """A consumer that must move what has expired stops when it holds enough of it."""
    world = World()

    def expired(reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> None:
        world.expired(reading, rows, offsets)
        reading.seek(reading.position)

    for way in ("one", "take", "arrow"):
        world.passed.clear()
        rows = rows_to_arrow([row_of(b"v", None, None, None, EPOCH_US - 10 * S, 0, 1)] * (SKIPPED_MAX + 1))
        run = run_of(world, rows, None, list(range(rows.num_rows)))
        assert isinstance(run, ExpiringRun)
        run._on_expired = expired
        if way == "one":
            assert run.take_one() is None
        else:
            assert len(run.take(5) if way == "take" else run.take_arrow(5)) == 0
        assert world.passed == list(range(BASE, BASE + SKIPPED_MAX))
        assert run.reading.position == BASE + SKIPPED_MAX
