"""The life of one bundle's timed messages: a small pure broker over a log that is a few lists, and what was
promised about each message.

The broker takes blocks in, delivers, flushes, loads, turns, recalls, drops bodies, moves log starts, one step at a
time. A group may be refused; then it loads its state from the log again, as another broker does at a takeover.
Its clock is never ahead of the true one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.timed.state.blocks import Id, Key, Source, encode_block
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US, RECALLS_FREE_TIMES, SECOND_US, TimerLimits
from ledgermq_broker.timed.state.memory.cut import Moved, batches, range_blocks
from ledgermq_broker.timed.state.memory.rows import rows_of
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import Placement, RangeId, flush_horizon, place
from ledgermq_broker.timed.state.recalls import RecallAnswer
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from tests.property.timer_log import REMOVED_TOPIC, SPANS_US, START_US, TARGETS, YEAR_US, Log, Sent, batch_of, keys_of


class TimerLife:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.limits = TimerLimits(recalls_max=20, recall_kept_ms=3_600_000)
        self.log = Log()
        self.true_us = START_US
        self.sent: dict[int, Sent] = {}
        self.delivered: list[int] = []
        self.topic_removed = self.is_ending = False
        self.refused = 0.05
        """Share of groups that are refused."""
        self.rows_max = rng.choice([4, 8, 20])
        self.chunks_bytes = [1, 200, 2000] if self.rows_max < 20 else [300, 5_000, 50_000]
        self.spans_us = rng.choice([SPANS_US, SPANS_US[:6], SPANS_US[5:]])
        self.take_over()

    # The broker

    def take_over(self) -> None:
        records = list(self.log.state.items())
        self.rng.shuffle(records)
        self.timers = BundleTimers(self.limits)
        for key, value in records:
            self.timers.apply(key, value)
        self.waiting = Waiting()
        self.loaded: set[RangeId] = set()
        self.closed_us = self.timers.watermark.due_us
        self.clock_us = self.true_us - self.rng.choice([0, 0, SECOND_US, 5 * MINUTE_US])
        for offset, record in enumerate(self.log.intake):
            if record is not None:
                self.waiting.add(
                    Source(None, offset),
                    self.log.read(None, offset),
                    above=self.timers.watermark,
                    horizon_us=self.timers.horizon_of(offset),
                )

    def append(self, records: Sequence[LogRecord], moved: Mapping[RangeId, Moved] | None = None) -> bool:
        """Append one group. False: it was refused, and the broker has loaded its state again."""
        if self.rng.random() < self.refused:
            self.take_over()
            return False
        for record in records:
            if record.value is None:
                self.log.state.pop(record.key, None)
            else:
                self.log.state[record.key] = record.value
        for range_id, found in (moved or {}).items():
            self.log.ranges[range_id].extend(found.blocks)
        return True

    def send(self) -> None:
        target = self.rng.choice(TARGETS[:2] if self.topic_removed else TARGETS)
        dues = [self.some_due() for _ in range(self.rng.randint(1, self.rows_max))]
        values = [len(self.sent) + i for i in range(len(dues))]
        floor_us = self.closed_us + 1
        block = encode_block(target, floor_us, encode_batch(batch_of(values, dues)))
        offset = len(self.log.intake)
        self.log.intake.append(block)
        for row, (value, due_us) in enumerate(zip(values, dues, strict=True)):
            self.sent[value] = Sent(Key(max(due_us, floor_us), offset, row), due_us, target)
        self.waiting.add(Source(None, offset), self.log.read(None, offset), above=self.timers.watermark)

    def some_due(self) -> int:
        """Return a due time: often whole minutes, often the same as another."""
        due_us = self.true_us - MINUTE_US + self.rng.randrange(self.rng.choice(self.spans_us) + MINUTE_US)
        return due_us - due_us % self.rng.choice([1, SECOND_US, MINUTE_US, 10 * MINUTE_US])

    def deliver(self, chunks: int = 1) -> None:
        to_us = self.timers.deliverable_to(self.clock_us, self.loaded)
        self.closed_us = max(self.closed_us, to_us)
        for _ in range(chunks):
            chunk = self.waiting.due(to_us, self.rng.choice(self.chunks_bytes))
            if chunk is None:
                if self.timers.frees(to_us) and self.timers.watermark < Key(to_us, 0, 0):
                    self.append(self.timers.delivered(Key(to_us, (1 << 63) - 1, (1 << 32) - 1), self.loaded).records)
                    self.loaded &= self.timers.ranges.keys()
                return
            if chunk.missing:
                for source in chunk.missing:
                    self.waiting.restore(source, self.log.read(*source))
                continue
            found = batches(self.timers.live(chunk.rows, self.exists))
            decision = self.timers.delivered(chunk.to, self.loaded)
            if not self.append(decision.records):
                return
            self.waiting.taken(chunk.to)
            self.loaded &= self.timers.ranges.keys()
            self.see(found)

    def flush(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            horizon_us = flush_horizon(self.clock_us, self.timers.ranges, self.closed_us)
            piece = self.waiting.flush(len(self.log.intake), horizon_us, self.rng.choice(self.chunks_bytes))
            if piece.end_offset == self.timers.flushed.end_offset:
                return
            for source in piece.missing:
                self.waiting.restore(source, self.log.read(*source))
            if piece.missing:
                continue
            rows = self.timers.live(piece.rows, self.exists)
            placement = self.place(rows.dues, None)
            if placement.lacking_us is not None:
                return
            moved = range_blocks(rows, placement.groups)
            decision = self.timers.flushed_to(piece.end_offset, horizon_us, moved, self.closed_us)
            if not self.append(decision.records, moved):
                return
            self.waiting.flushed(piece.end_offset, horizon_us)

    def load(self) -> None:
        for range_id in self.timers.to_load(self.clock_us, self.loaded):
            for offset in range(self.timers.ranges[range_id].begin_offset, len(self.log.ranges[range_id])):
                self.waiting.add(Source(range_id, offset), self.log.read(range_id, offset), above=self.timers.watermark)
            self.loaded.add(range_id)

    def turn(self, chunks: int = 1) -> None:
        for _ in range(chunks):
            range_id = self.timers.to_turn(self.clock_us)
            if range_id is None or not self._turn_chunk(range_id):
                return

    def _turn_chunk(self, range_id: RangeId) -> bool:
        if not self.timers.ranges[range_id].turning and not self.append(self.timers.turning(range_id).records):
            return False
        found = self.timers.ranges[range_id]
        begin, end = found.begin_offset, len(self.log.ranges[range_id])
        stop = min(end, begin + (50 if self.is_ending else self.rng.randint(1, 8)))
        blocks = [(Source(range_id, offset), self.log.read(range_id, offset)) for offset in range(begin, stop)]
        if not self.is_ending and self.rng.random() < 0.2:  # what happens while they are read
            step = self.rng.choice([self.send, self.take_over, self.deliver, self.flush, self.turn])
            step()
        if self.timers.ranges.get(range_id) is None:
            return False
        rows = self.timers.live(rows_of(blocks, self.timers.watermark), self.exists)
        placement = self.place(rows.dues, range_id)
        if placement.lacking_us is not None:
            return False
        moved = range_blocks(rows, placement.groups)
        is_last = stop == len(self.log.ranges[range_id])
        decision = self.timers.turned(
            range_id, begin, stop, [block for _, block in blocks], moved, self.closed_us, is_last=is_last
        )
        return decision.answer and self.append(decision.records, moved)

    def place(self, dues: pa.Int64Array, turned: RangeId | None) -> Placement:
        placement = place(
            dues,
            self.clock_us,
            self.timers.ranges,
            self.closed_us,
            lambda range_id: len(self.log.ranges[range_id]),
            loaded=self.loaded,
            turned=None if turned is None else self.timers.ranges[turned],
        )
        at = 0
        for group in placement.groups:
            assert group.start == at < group.stop
            at = group.stop
            assert group.range_id not in self.loaded
        assert at == len(dues) or placement.lacking_us is not None
        return placement

    def recall(self) -> None:
        if not self.sent:
            return
        again = [sent for sent in self.sent.values() if sent.recalled]
        sent = self.rng.choice(again if again and self.rng.random() < 0.3 else list(self.sent.values()))
        watermark = self.timers.watermark
        was_late = sent.key <= watermark
        message, its_own = Id(sent.key.offset, sent.key.row), sent.target.topic_id
        topic_id = self.rng.choice([5, 9]) if self.rng.random() < 0.3 else its_own
        try:
            decision = self.timers.recall(message, sent.due_us, watermark, watermark, topic_id)
        except ResourceExhausted:
            free = self.limits.recalls_max - len(self.timers.recalls)
            of_topic = sum(topic_id in found.topic_ids for found in self.timers.recalls.values())
            assert of_topic >= RECALLS_FREE_TIMES * free, "a recall was refused though there is room"
            return
        if not self.append(decision.records) or topic_id != its_own:
            return
        match decision.answer:
            case RecallAnswer.RECALLED:
                assert sent.recalled or not was_late, "a message was recalled after its delivery"
                sent.recalled = True
            case RecallAnswer.TOO_LATE:
                assert not sent.recalled, "a recalled message is too late"
                sent.too_late = True
            case RecallAnswer.FORGOTTEN:
                assert watermark.due_us - sent.due_us >= self.limits.recall_kept_ms * 1000
            case RecallAnswer.WAIT:
                raise AssertionError("nothing is in flight")

    def trim(self) -> None:
        for offset in range(self.timers.intake_start()):
            self.log.intake[offset] = None
        starts = self.timers.range_starts()
        for range_id, blocks in self.log.ranges.items():
            for offset in range(starts.get(range_id, len(blocks))):
                blocks[offset] = None

    def exists(self, topic_id: int) -> bool:
        return not (self.topic_removed and topic_id == REMOVED_TOPIC)

    # What is promised

    def see(self, found: Mapping[PartitionId, pa.RecordBatch]) -> None:
        values: list[tuple[Key, int]] = []
        for target, batch in found.items():
            keys = []
            dues = batch["timestamp"].view(pa.int64()).to_pylist()
            for value, due in zip(batch["value"].to_pylist(), dues, strict=True):
                sent = self.sent[int(value)]
                assert (sent.target, sent.due_us) == (target, due), "a message is not what was sent"
                assert sent.key.due_us <= self.true_us, "a message is early"
                assert not sent.recalled, "a recalled message is delivered"
                keys.append((sent.key, int(value)))
            assert keys == sorted(keys), "a batch is not in order"
            values += keys
        self.delivered += [value for _, value in sorted(values)]

    def check_order(self) -> None:
        keys = [self.sent[value].key for value in self.delivered]
        assert all(before < after for before, after in pairwise(keys)), "messages are not in order, or twice"

    def check_places(self) -> None:
        """Each waiting message has one home: the memory of the intake, or one range (R16)."""
        watermark = self.timers.watermark
        homes: dict[Id, int] = {}
        in_memory = 0
        for offset, record in enumerate(self.log.intake):
            if record is None:
                continue
            horizon_us = self.timers.horizon_of(offset)
            for key in keys_of(Source(None, offset), self.log.read(None, offset), watermark):
                if horizon_us is None or key.due_us <= horizon_us:
                    homes[key.id] = homes.get(key.id, 0) + 1
                    in_memory += 1
        for range_id, found in self.timers.ranges.items():
            records = 0
            for offset in range(found.begin_offset, len(self.log.ranges[range_id])):
                block = self.log.read(range_id, offset)
                records += block.records.num_rows
                for key in keys_of(Source(range_id, offset), block, watermark):
                    assert found.from_us <= key.due_us < found.to_us
                    homes[key.id] = homes.get(key.id, 0) + 1
                    in_memory += range_id in self.loaded
            assert records == found.records
        waiting = {
            sent.key.id
            for sent in self.sent.values()
            if sent.key > watermark and not sent.recalled and self.exists(sent.target.topic_id)
        }
        assert waiting <= homes.keys(), "a message is lost"
        assert set(homes.values()) <= {1}, "a message is in two places"
        assert in_memory == self.waiting.rows

    def check_end(self) -> None:
        """Everything is delivered that was not recalled, in order of keys."""
        seen = set(self.delivered)
        expected = [
            value
            for value, sent in self.sent.items()
            if not sent.recalled and (self.exists(sent.target.topic_id) or value in seen)
        ]
        expected.sort(key=lambda value: self.sent[value].key)
        assert self.delivered == expected
        assert all(value in seen for value, sent in self.sent.items() if sent.too_late and self.exists(sent.target[0]))

    # A year

    def advance(self, until_us: int) -> None:
        """Let time pass: often to the moment when something is to do, sometimes for days at once."""
        moments = [self.waiting.next_due_us, self.timers.next_move_us(self.loaded)]
        ahead = [moment for moment in moments if moment is not None and moment > self.true_us]
        if ahead and self.rng.random() < 0.6:
            self.true_us = min(ahead) + self.rng.choice([0, 1, SECOND_US])
        else:
            self.true_us += self.rng.randrange(self.rng.choice(SPANS_US[:6]) + 1)
        self.true_us = min(self.true_us, until_us)
        self.clock_us = max(self.clock_us, self.true_us - self.rng.choice([0, 0, 0, 2 * SECOND_US]))

    def outage(self) -> None:
        """No broker is there for hours or weeks. The next one takes in much before it looks at what is overdue."""
        for _ in range(10):
            self.send()
        self.flush(100)
        self.true_us += self.rng.choice([0, 20 * MINUTE_US, 3 * 60 * MINUTE_US, 2 * DAY_US, 40 * DAY_US])
        self.take_over()
        for _ in range(10):
            self.send()
        self.flush(100)

    def step(self) -> None:
        match self.rng.choice("ssssddddffllttttrek"):
            case "s":
                self.send()
            case "d":
                self.deliver(self.rng.randint(1, 5))
            case "f":
                self.flush(self.rng.randint(1, 5))
            case "l":
                self.load()
            case "t":
                self.turn(self.rng.randint(1, 5))
            case "r":
                self.recall()
            case "e":
                self.waiting.evict(self.rng.choice([0, 3000]))
            case "k":
                self.rng.choice([self.take_over, self.trim])()

    def end(self) -> None:
        """Let time pass until all is delivered."""
        self.is_ending = True
        self.refused /= 5
        last_us = max((sent.key.due_us for sent in self.sent.values()), default=self.true_us)
        idle = 0
        while idle < 60:
            before = self.true_us, self.log.state.copy()
            self.advance(last_us + DAY_US)
            if self.true_us < last_us and self.rng.random() < 0.1:
                self.true_us = min(last_us, self.true_us + 3 * DAY_US)
            self.clock_us = max(self.clock_us, self.true_us)
            for step in (lambda: self.turn(50), self.load, lambda: self.deliver(self.rng.choice([1, 50])), self.flush):
                step()
            if self.rng.random() < 0.1:
                self.check_places()
            idle = idle + 1 if before == (self.true_us, self.log.state) else 0
        assert not self.waiting.rows, f"{self.waiting.rows} messages stay in memory"
        assert not self.timers.ranges, f"ranges are never moved: {self.timers.ranges}"


def live(seed: int, steps: int = 300) -> TimerLife:
    """Live a year. Raises AssertionError: a promise is broken."""
    rng = random.Random(seed)
    life = TimerLife(rng)
    for number in range(steps):
        life.step()
        if rng.random() < 0.4:
            life.advance(START_US + YEAR_US)
        if rng.random() < 0.05:
            life.check_places()
            life.check_order()
        if number == steps // 2:
            life.topic_removed = rng.random() < 0.5
            life.outage()
    life.end()
    life.check_order()
    life.check_end()
    return life


def live_through_an_outage(seed: int) -> TimerLife:
    """Let ranges become overdue while others want their places. Raises AssertionError: a promise is broken."""
    life = TimerLife(random.Random(seed))
    life.rows_max, life.chunks_bytes, life.refused = 40, [300, 20_000], 0.1
    for span_us, out_us in ((240 * MINUTE_US, 180 * MINUTE_US), (20 * MINUTE_US, 0)):
        life.spans_us = (span_us,)
        for _ in range(15):
            life.send()
        life.flush(50)
        life.true_us += out_us
        life.take_over()
        life.clock_us = life.true_us
    life.end()
    life.check_order()
    life.check_end()
    return life
