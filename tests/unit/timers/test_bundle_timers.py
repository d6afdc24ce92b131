"""The state of one bundle's timed messages: each decision, what it refuses, and that its records are the state."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from ledgermq.errors import QuotaExceeded, ResourceExhausted
from ledgermq_broker.timed.state.blocks import START, Id, Key, Source, end_of
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import MINUTE_US, RECALL_TOPICS_MAX, SECOND_US, TimerLimits
from ledgermq_broker.timed.state.memory.cut import Moved
from ledgermq_broker.timed.state.memory.rows import rows_of
from ledgermq_broker.timed.state.places import Range, RangeId
from ledgermq_broker.timed.state.recalls import RecallAnswer
from ledgermq_broker.timed.state.records import Flushed, Piece, RecallEntry, encode
from ledgermq_ledger.log.log_record import LogRecord
from tests.unit.timers.test_waiting import intake_block, range_block

T0_US = 240_000 * 120 * MINUTE_US
HOUR_US = 60 * MINUTE_US
NEAR, FAR = RangeId(False, 1), RangeId(True, 5)
MINUTE = Range(T0_US, T0_US + MINUTE_US, 4, records=2, size_bytes=200)
TEN = Range(T0_US, T0_US + 10 * MINUTE_US, 9, records=5, size_bytes=5_000)


class Bundle:
    """A state, and a copy that is made of the records of its decisions, applied in any order."""

    def __init__(self, **limits: int) -> None:
        self.timers = BundleTimers(TimerLimits(**limits))
        self._limits = TimerLimits(**limits)
        self._log: dict[bytes, bytes | None] = {}

    def write(self, records: list[LogRecord]) -> None:
        self._log |= {record.key: record.value for record in records}
        copy = BundleTimers(self._limits)
        for key, value in random.Random(7).sample(list(self._log.items()), len(self._log)):
            copy.apply(key, value)
        assert copy.entries() == self.timers.entries()

    def have(self, **ranges: Range) -> None:
        ids = {"near": NEAR, "far": FAR}
        moved = {ids[name]: Moved(found, ()) for name, found in ranges.items()}
        end = self.timers.flushed.end_offset + 1
        self.write(self.timers.flushed_to(end, T0_US - 5 * MINUTE_US, moved, T0_US - HOUR_US).records)


def test_the_watermark_grows_and_frees_ranges() -> None:
    bundle = Bundle()
    bundle.have(near=MINUTE)
    horizon_us = T0_US - 5 * MINUTE_US
    assert not bundle.timers.frees(horizon_us - 1)
    assert bundle.timers.frees(horizon_us), "all that was flushed of the intake"
    bundle.write(bundle.timers.delivered(end_of(horizon_us), ()).records)
    assert not bundle.timers.frees(MINUTE.to_us - 2)
    assert bundle.timers.frees(MINUTE.to_us - 1), "the range"
    bundle.write(bundle.timers.delivered(Key(MINUTE.to_us - 1, 3, 1), {NEAR}).records)
    assert bundle.timers.ranges == {NEAR: MINUTE}
    bundle.write(bundle.timers.delivered(end_of(MINUTE.to_us - 1), {NEAR}).records)
    assert bundle.timers.ranges == {}
    with pytest.raises(AssertionError, match="the watermark"):
        bundle.timers.delivered(end_of(MINUTE.to_us - 1), {NEAR})


def test_the_watermark_does_not_pass_what_is_not_loaded() -> None:
    bundle = Bundle()
    bundle.have(near=MINUTE, far=replace(TEN, from_us=T0_US + 10 * MINUTE_US, to_us=T0_US + 20 * MINUTE_US))
    now_us = T0_US + HOUR_US
    assert bundle.timers.deliverable_to(now_us, ()) == T0_US - 1
    assert bundle.timers.deliverable_to(now_us, {NEAR}) == T0_US + 10 * MINUTE_US - 1
    assert bundle.timers.deliverable_to(5, {NEAR}) == 5
    with pytest.raises(AssertionError, match="not loaded"):
        bundle.timers.delivered(Key(T0_US, 1, 1), ())


def test_a_minute_is_loaded_before_it_begins_when_nothing_wider_contains_it() -> None:
    bundle = Bundle()
    bundle.have(near=MINUTE)
    assert bundle.timers.next_move_us(()) == T0_US - 20 * SECOND_US
    assert bundle.timers.to_load(T0_US - 20 * SECOND_US - 1, ()) == []
    assert bundle.timers.to_load(T0_US - 20 * SECOND_US, ()) == [NEAR]
    assert bundle.timers.to_load(T0_US, {NEAR}) == []
    assert bundle.timers.next_move_us({NEAR}) is None
    bundle.have(far=TEN)
    assert bundle.timers.to_load(T0_US, ()) == []
    assert bundle.timers.next_move_us(()) == TEN.turn_us


def test_the_earliest_range_is_turned_first_of_these_the_widest() -> None:
    bundle = Bundle()
    later = replace(TEN, from_us=TEN.to_us, to_us=TEN.to_us + 10 * MINUTE_US)
    wide = Range(T0_US, T0_US + 120 * MINUTE_US, 0)
    moved = {RangeId(True, n): Moved(found, ()) for n, found in enumerate((later, TEN, wide))}
    bundle.write(bundle.timers.flushed_to(1, 1, moved, 0).records)
    assert bundle.timers.to_turn(wide.turn_us - 1) is None
    assert bundle.timers.to_turn(wide.turn_us) == RangeId(True, 2)
    assert bundle.timers.to_turn(T0_US + HOUR_US) == RangeId(True, 2)


def test_a_range_whose_principals_an_earlier_release_dropped_is_turned_as_any_other() -> None:
    bundle = Bundle()
    bundle.have(far=replace(TEN, principals={8: 200}))
    bundle.write(bundle.timers.turning(FAR).records)
    blocks = [replace(range_block([Key(T0_US, 1, row)]), principal=principal) for row, principal in ((1, 7), (2, 0))]
    assert bundle.timers.turned(FAR, 9, 12, blocks, {NEAR: Moved(MINUTE, ())}, T0_US - 1, is_last=False).answer
    assert (bundle.timers.waiting_bytes_of(7), bundle.timers.waiting_bytes_of(8)) == (0, 200)


def test_a_turned_chunk_advances_the_range_and_the_last_one_ends_it() -> None:
    bundle = Bundle()
    bundle.have(far=TEN)
    bundle.write(bundle.timers.turning(FAR).records)
    block = range_block([Key(T0_US, 1, 1), Key(T0_US, 1, 2)])
    moved = {NEAR: Moved(MINUTE, ())}
    decision = bundle.timers.turned(FAR, 9, 12, [block], moved, T0_US - 1, is_last=False)
    assert decision.answer
    bundle.write(decision.records)
    assert bundle.timers.ranges == {
        NEAR: MINUTE,
        FAR: replace(TEN, begin_offset=12, turning=True, records=3, size_bytes=5_000 - block.size_bytes),
    }
    assert bundle.timers.range_starts() == {NEAR: 4, FAR: 12}
    assert bundle.timers.waiting_bytes == 5_200 - block.size_bytes
    stale = bundle.timers.turned(FAR, 9, 12, [block], moved, T0_US - 1, is_last=False)
    assert (stale.records, stale.answer) == ([], False)
    bundle.write(bundle.timers.turned(FAR, 12, 12, [], {}, T0_US - 1, is_last=True).records)
    assert FAR not in bundle.timers.ranges
    assert not bundle.timers.turned(FAR, 12, 13, [], {}, T0_US - 1, is_last=True).answer


def test_messages_of_a_topic_are_counted_in_ranges_that_are_not_loaded() -> None:
    bundle = Bundle()
    block = range_block([Key(T0_US, 1, 1), Key(T0_US, 1, 2)])
    topic, minute = block.topic_id, replace(MINUTE, topics={block.topic_id: 2})
    bundle.have(far=replace(TEN, topics={topic: 4, topic + 1: 1}))
    bundle.write(bundle.timers.turning(FAR).records)
    assert (bundle.timers.waiting_of(topic, ()), bundle.timers.waiting_of(topic + 2, ())) == (4, 0)
    turned = bundle.timers.turned(FAR, 9, 12, [block], {NEAR: Moved(minute, ())}, T0_US - 1, is_last=False)
    bundle.write(turned.records)
    assert bundle.timers.ranges[FAR].topics == {topic: 2, topic + 1: 1}
    assert [bundle.timers.waiting_of(topic, loaded) for loaded in ((), {NEAR}, {NEAR, FAR})] == [4, 2, 0]


def test_messages_that_an_older_release_has_moved_are_counted_when_they_are_turned() -> None:
    """It writes a range without its topics. The count is too low until then, and never too high."""
    bundle = Bundle()
    block = range_block([Key(T0_US, 1, 1), Key(T0_US, 1, 2)])
    bundle.have(far=TEN)
    assert bundle.timers.waiting_of(block.topic_id, ()) == 0
    bundle.write(bundle.timers.turning(FAR).records)
    moved = {NEAR: Moved(replace(MINUTE, topics={block.topic_id: 2}), ())}
    bundle.write(bundle.timers.turned(FAR, 9, 12, [block], moved, T0_US - 1, is_last=False).records)
    assert bundle.timers.ranges[FAR].topics == {}
    assert bundle.timers.waiting_of(block.topic_id, ()) == 2


@pytest.mark.parametrize(
    ("moved", "closed_us"),
    [
        ({NEAR: Moved(MINUTE, ())}, T0_US),  # begins at what is closed
        ({FAR: Moved(replace(TEN, records=6), ())}, 0),  # turns
        ({RangeId(False, 2): Moved(replace(MINUTE, records=1), ())}, 0),  # would have fewer messages
        ({RangeId(False, 2): Moved(replace(MINUTE, begin_offset=5), ())}, 0),  # begins elsewhere
    ],
)
def test_what_would_break_the_state_is_a_bug(moved: dict[RangeId, Moved], closed_us: int) -> None:
    bundle = Bundle()
    bundle.have(far=TEN)
    bundle.write(bundle.timers.turning(FAR).records)
    bundle.write(bundle.timers.flushed_to(5, 7, {RangeId(False, 2): Moved(MINUTE, ())}, 0).records)
    before = bundle.timers.entries()
    with pytest.raises(AssertionError):
        bundle.timers.flushed_to(50, 9, moved, closed_us)
    assert bundle.timers.entries() == before


def test_the_intake_is_needed_from_the_first_piece_on_that_is_not_finished() -> None:
    bundle = Bundle()
    timers = bundle.timers
    bundle.write(timers.flushed_to(10, T0_US, {}, 0).records)
    bundle.write(timers.flushed_to(20, T0_US, {}, 0).records)
    bundle.write(timers.flushed_to(30, T0_US + MINUTE_US, {}, 0).records)
    assert timers.flushed == Flushed(0, (Piece(20, T0_US), Piece(30, T0_US + MINUTE_US)))
    assert [timers.horizon_of(offset) for offset in (0, 19, 20, 30)] == [T0_US, T0_US, T0_US + MINUTE_US, None]
    bundle.write(timers.delivered(Key(T0_US, 5, 5), ()).records)  # others may be due then
    assert timers.intake_start() == 0
    bundle.write(timers.delivered(end_of(T0_US), ()).records)
    assert timers.intake_start() == 20
    bundle.write(timers.flushed_to(40, T0_US + 2 * MINUTE_US, {}, 0).records)
    assert timers.flushed.begin_offset == 20
    assert timers.horizon_of(19) == 0
    bundle.write(timers.delivered(end_of(T0_US + HOUR_US), ()).records)
    assert timers.intake_start() == 40
    with pytest.raises(AssertionError, match="flushed up to"):
        timers.flushed_to(40, 1, {}, 0)


def test_recalled_messages_and_those_of_removed_topics_are_not_live() -> None:
    bundle = Bundle()
    bundle.write(bundle.timers.recall(Id(0, 1), 20, START, START, 5).records)
    bundle.write(bundle.timers.recall(Id(1, 0), 10, START, START, 5).records)
    blocks = [intake_block([10, 20, 30]), intake_block([10, 20]), intake_block([10], topic_id=6)]
    rows = rows_of([(Source(None, n), block) for n, block in enumerate(blocks)], START)
    live = bundle.timers.live(rows, lambda topic_id: topic_id != 6)
    assert [live.key(at) for at in range(len(live))] == [Key(10, 0, 0), Key(20, 1, 1), Key(30, 0, 2)]
    moved = rows_of([(Source(NEAR, 0), range_block([Key(10, 0, 1), Key(10, 1, 1)]))], START)
    assert bundle.timers.live(moved, lambda _: True).ids.offsets.to_pylist() == [1]
    none = rows_of([(Source(None, 2), blocks[2])], START)
    assert len(bundle.timers.live(none, lambda _: False)) == 0
    assert isinstance(live.of, pa.UInt32Array)


def test_a_recall_is_answered_by_what_is_durable() -> None:
    bundle = Bundle()
    timers = bundle.timers
    bundle.write(timers.delivered(end_of(T0_US), ()).records)
    ask = lambda due_us, to, durable: timers.recall(Id(3, 3), due_us, to, durable, 5)  # noqa: E731
    here = end_of(T0_US)
    assert ask(T0_US, here, START).answer is RecallAnswer.WAIT
    assert ask(T0_US, START, here).answer is RecallAnswer.TOO_LATE
    assert ask(T0_US + 1, end_of(T0_US + 1), here).answer is RecallAnswer.WAIT
    assert ask(T0_US - HOUR_US, here, here).answer is RecallAnswer.FORGOTTEN
    assert ask(T0_US - HOUR_US + 1, here, here).answer is RecallAnswer.TOO_LATE
    decision = ask(T0_US + 1, here, here)
    assert decision.answer is RecallAnswer.RECALLED
    bundle.write(decision.records)
    again = ask(T0_US + 1, end_of(T0_US + 2), here)
    assert (again.records, again.answer) == ([], RecallAnswer.RECALLED)


def test_tombstones_of_recalls_are_kept_and_bounded() -> None:
    bundle = Bundle(recalls_max=2)
    timers = bundle.timers
    for row in range(2):
        bundle.write(timers.recall(Id(3, row), T0_US + row, START, START, 5).records)
    with pytest.raises(ResourceExhausted, match="2 recalled messages"):
        timers.recall(Id(3, 5), T0_US, START, START, 5)
    bundle.write(timers.delivered(end_of(T0_US + HOUR_US - 1), ()).records)
    assert len(timers.recalls) == 2
    assert timers.frees(T0_US + HOUR_US)
    bundle.write(timers.delivered(end_of(T0_US + HOUR_US), ()).records)
    assert timers.recalls == {Id(3, 1): (T0_US + 1, (5,), ())}
    bundle.write(timers.recall(Id(3, 6), T0_US + 2 * HOUR_US, START, START, 5).records)
    assert set(timers.recalls) == {Id(3, 1), Id(3, 6)}


def test_recalls_of_one_topic_leave_room_for_those_of_others() -> None:
    bundle = Bundle(recalls_max=10)
    timers = bundle.timers
    for row in range(8):
        bundle.write(timers.recall(Id(3, row), T0_US + row, START, START, 5).records)
    with pytest.raises(ResourceExhausted, match="8 recalled messages of this topic"):
        timers.recall(Id(3, 8), T0_US + 8, START, START, 5)
    bundle.write(timers.recall(Id(4, 0), T0_US, START, START, 6).records)
    bundle.write(timers.delivered(end_of(T0_US + HOUR_US + 5), ()).records)
    bundle.write(timers.recall(Id(3, 8), T0_US + 2 * HOUR_US, START, START, 5).records)


def test_a_recall_counts_for_a_message_of_the_topic_that_was_named() -> None:
    """Access rules judge the topic that the caller names; the message may be of another one."""
    bundle = Bundle()
    timers = bundle.timers
    rows = rows_of([(Source(None, 0), intake_block([10, 20], topic_id=5))], START)

    def live() -> list[int]:
        found: list[int] = timers.live(rows, lambda _: True).ids.rows.to_pylist()
        return found

    bundle.write(timers.recall(Id(0, 0), 10, START, START, 6).records)
    assert not timers.is_recalled(Id(0, 0), 5)
    assert live() == [0, 1], "it was recalled as a message of topic 6, and is one of 5"
    decision = timers.recall(Id(0, 0), 7, START, START, 5)
    assert decision.records, "the other recall does not answer for it"
    bundle.write(decision.records)
    assert timers.recalls == {Id(0, 0): (10, (5, 6), ())}, "the later due time keeps the tombstone"
    assert live() == [1]
    assert timers.recall(Id(0, 0), 10, START, START, 5).records == []


def test_guesses_of_topics_are_bounded() -> None:
    timers = BundleTimers(TimerLimits())
    for topic_id in range(RECALL_TOPICS_MAX):
        timers.recall(Id(0, 0), 10, START, START, 100 + topic_id)
    with pytest.raises(ResourceExhausted, match="16 other topics"):
        timers.recall(Id(0, 0), 10, START, START, 5)


def test_guesses_of_one_principal_keep_no_other_one_from_recalling_a_message() -> None:
    """Sixteen topics of one principal blocked the recall by the sender itself, and the message was delivered."""
    bundle = Bundle(recalls_max=100)
    timers, message = bundle.timers, Id(0, 0)
    for topic_id in range(RECALL_TOPICS_MAX):
        bundle.write(timers.recall(message, 10, START, START, 100 + topic_id, 7).records)
    with pytest.raises(ResourceExhausted, match="16 other topics"):
        timers.recall(message, 10, START, START, 300, 7)
    decision = timers.recall(message, 10, START, START, 5, 8)
    assert decision.answer is RecallAnswer.RECALLED
    bundle.write(decision.records)
    assert timers.is_recalled(message, 5)
    assert timers.recalls[message].by_topic() == {5: 8} | dict.fromkeys(range(100, 100 + RECALL_TOPICS_MAX), 7)


def test_recalls_of_one_principal_leave_room_for_those_of_others() -> None:
    """By several topics one principal could fill the table, because each topic had its own share."""
    bundle = Bundle(recalls_max=20)
    timers = bundle.timers
    for row in range(10):
        bundle.write(timers.recall(Id(3, row), T0_US + row, START, START, 50 + row, 7).records)
    with pytest.raises(QuotaExceeded, match="this principal has 10") as refused:
        timers.recall(Id(3, 10), T0_US, START, START, 70, 7)
    assert refused.value.limit == "recalls"
    bundle.write(timers.recall(Id(4, 0), T0_US, START, START, 6, 8).records)
    bundle.write(timers.delivered(end_of(T0_US + HOUR_US + 5), ()).records)
    assert timers.recall_shares.of(7) == 4
    bundle.write(timers.recall(Id(3, 10), T0_US + 2 * HOUR_US, START, START, 70, 7).records)


def test_a_recall_of_an_earlier_release_counts_for_any_topic() -> None:
    timers = BundleTimers(TimerLimits())
    record = encode(RecallEntry(Id(0, 0), 10))
    timers.apply(record.key, record.value)
    assert timers.is_recalled(Id(0, 0), 5)
    assert not timers.is_recalled(Id(0, 1), 5)


def test_all_that_was_flushed_is_freed_at_the_highest_horizon() -> None:
    """That of a flush that found few free ranges is higher than that of the flush after it."""
    bundle = Bundle()
    timers = bundle.timers
    for end, horizon_us in ((10, T0_US + 2 * MINUTE_US), (20, T0_US + MINUTE_US)):
        bundle.write(timers.flushed_to(end, horizon_us, {}, T0_US).records)
    assert not timers.frees(T0_US + MINUTE_US)
    assert timers.frees(T0_US + 2 * MINUTE_US)
    bundle.write(timers.delivered(end_of(T0_US + 2 * MINUTE_US), ()).records)
    assert timers.intake_start() == 20
    assert not timers.frees(T0_US + HOUR_US)
