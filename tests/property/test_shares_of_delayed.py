"""Random lives of a bundle's delayed messages, sent by principals: what each has is what the log says, at any time.

The life is that of `timer_life`: blocks are flushed, turned, loaded, delivered, recalled, and owners change. What each
principal has is counted here from the blocks of the log. The planted mistakes at the end show that the lives see them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.timed.state import blocks, records
from ledgermq_broker.timed.state.blocks import Block, Key, Source, encode_block
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.memory import cut
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import Range
from ledgermq_broker.timed.state.sizes import BLOCK_BYTES, DelayedSizes
from ledgermq_ledger.log.log_record import LogRecord
from tests.property.timer_life import TimerLife
from tests.property.timer_log import SPANS_US, TARGETS, Sent, batch_of, keys_of

MALLORY, VICTIM, NOT_KNOWN = 5, 6, 0
CALLERS = (MALLORY, VICTIM, NOT_KNOWN)
LIVES, STEPS = 12, 60


class SharedLife(TimerLife):
    """`senders`: who sent each block of the intake."""

    def __init__(self, seed: int) -> None:
        self.senders: list[int] = []
        super().__init__(random.Random(seed))
        self.spans_us = SPANS_US[:6]

    def send(self) -> None:
        caller = self.rng.choice(CALLERS)
        target = self.rng.choice(TARGETS[:2] if self.topic_removed else TARGETS)
        dues = [self.some_due() for _ in range(self.rng.randint(1, self.rows_max))]
        values = [len(self.sent) + i for i in range(len(dues))]
        floor_us, offset = self.closed_us + 1, len(self.log.intake)
        self.log.intake.append(encode_block(target, floor_us, encode_batch(batch_of(values, dues)), principal=caller))
        self.senders.append(caller)
        for row, (value, due_us) in enumerate(zip(values, dues, strict=True)):
            self.sent[value] = Sent(Key(max(due_us, floor_us), offset, row), due_us, target)
        self.waiting.add(Source(None, offset), self.log.read(None, offset), above=self.timers.watermark)

    def check_shares(self) -> None:
        stored, index, in_ranges = Counter[int](), Counter[int](), Counter[int]()
        for offset, record in enumerate(self.log.intake):
            if record is None:
                continue
            block, horizon_us = self.log.read(None, offset), self.timers.horizon_of(offset)
            assert block.principal == self.senders[offset], "a block is of another principal"
            waiting = keys_of(Source(None, offset), block, self.timers.watermark)
            if any(horizon_us is None or key.due_us <= horizon_us for key in waiting):
                stored[block.principal] += block.size_bytes
                index[block.principal] += BLOCK_BYTES
        for range_id, found in self.timers.ranges.items():
            for offset in range(found.begin_offset, len(self.log.ranges[range_id])):
                block = self.log.read(range_id, offset)
                in_ranges[block.principal] += block.size_bytes
                assert block.ids is not None
                senders = {self.senders[each] for each in block.ids.offsets.to_pylist()}
                assert senders == {block.principal}, "a block of a range is of another principal"
                if range_id in self.loaded and keys_of(Source(range_id, offset), block, self.timers.watermark):
                    index[block.principal] += BLOCK_BYTES
        assert sum(in_ranges.values()) == self.timers.waiting_bytes, "the bytes in ranges"
        assert self.waiting.sizes.stored.total == sum(stored.values()), "the bytes in the intake"
        for each in (MALLORY, VICTIM):
            has, counts = in_ranges[each], self.timers.waiting_bytes_of(each)
            assert counts == has, f"{each} has {has} bytes in ranges, and counts {counts}"
            here = self.waiting.sizes.of(each)
            assert here.stored_bytes == stored[each], f"{each} has {stored[each]} bytes in the intake: {here}"
            assert index[each] <= here.index_bytes <= 2 * index[each], f"{each} has {index[each]} of the index: {here}"


def live(lives: int = LIVES) -> None:
    for seed in range(lives):
        life = SharedLife(seed)
        for number in range(STEPS):
            life.step()
            if life.rng.random() < 0.4:
                life.advance(life.true_us + SPANS_US[5])
            if number == STEPS // 2:
                life.topic_removed = life.rng.random() < 0.5
                life.outage()
            life.check_shares()
        life.end()
        life.check_shares()
        assert not any(life.timers.waiting_bytes_of(each) for each in CALLERS), "what is delivered still counts"
        assert life.waiting.sizes.total == (0, 0)


def test_in_random_lives_each_principal_has_what_the_log_says() -> None:
    live()


def _moves_forget_who_sent(patch: pytest.MonkeyPatch) -> None:
    def encode(*given: object, principal: int) -> LogRecord:
        return encode_block(*given)  # type: ignore[arg-type]

    patch.setattr(cut, "encode_block", encode)


def _blocks_of_all_principals_are_put_together(patch: pytest.MonkeyPatch) -> None:
    real = cut._split
    patch.setattr(
        cut,
        "_split",
        lambda rows, key: (
            ((each, MALLORY) if key is not cut._target else each, *rest)
            for each, *rest in real(rows, lambda block: block.target)
        ),
    )


def _turns_leave_the_bytes(patch: pytest.MonkeyPatch) -> None:
    real = BundleTimers.turned

    def turned(self: BundleTimers, *given: object, **named: object) -> object:
        unnamed = [replace(block, principal=NOT_KNOWN) for block in given[3]]  # type: ignore[attr-defined]
        return real(self, *given[:3], unnamed, *given[4:], **named)  # type: ignore[arg-type]

    patch.setattr(BundleTimers, "turned", turned)


def _owners_forget_the_bytes_of_ranges(patch: pytest.MonkeyPatch) -> None:
    real = records._range_of

    def range_of(*given: object) -> Range:
        return replace(real(*given), principals={})  # type: ignore[arg-type]

    patch.setattr(records, "_range_of", range_of)


def _owners_forget_who_sent_a_block(patch: pytest.MonkeyPatch) -> None:
    def read(self: object, range_id: object, offset: int) -> Block:
        record: LogRecord = (self.intake if range_id is None else self.ranges[range_id])[offset]  # type: ignore[attr-defined]
        return replace(blocks.decode_block(record.key, record.value), principal=NOT_KNOWN)

    patch.setattr("tests.property.timer_log.Log.read", read)


def _nothing_is_freed(patch: pytest.MonkeyPatch) -> None:
    real = DelayedSizes.add

    def add(self: DelayedSizes, principal: int, size: object, sign: int = 1) -> None:
        if sign > 0:
            real(self, principal, size)  # type: ignore[arg-type]

    patch.setattr(DelayedSizes, "add", add)


def _loaded_ranges_count_twice(patch: pytest.MonkeyPatch) -> None:
    real = Waiting.add

    def add(self: Waiting, source: Source, block: Block, **named: object) -> int:
        found: int = real(self, source, block, **named)  # type: ignore[arg-type]
        if source.range_id is not None and (waiter := self._waiters.get(source)) is not None:
            self.sizes.add(waiter.principal, waiter.size, -1)
            waiter.size = waiter.size._replace(stored_bytes=block.size_bytes)
            self.sizes.add(waiter.principal, waiter.size)
        return found

    patch.setattr(Waiting, "add", add)


@pytest.mark.parametrize(
    "plant",
    [
        _moves_forget_who_sent,
        _blocks_of_all_principals_are_put_together,
        _turns_leave_the_bytes,
        _owners_forget_the_bytes_of_ranges,
        _owners_forget_who_sent_a_block,
        _nothing_is_freed,
        _loaded_ranges_count_twice,
    ],
    ids=lambda each: str(each.__name__).strip("_"),
)
def test_the_lives_see_a_mistake(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"principal|bytes|index|counts"):
        live()
