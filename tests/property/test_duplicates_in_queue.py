"""A producer's partition whose broker recognizes messages by their ids, with every fault that a line and an
owner can have. Messages of a line that was lost may be found late.

The model broker is the real fold of producers and ids. Some batches have ids, often the same ones; it
refuses those with duplicates, and the queue sends the others again.
"""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.messages.record import Given, row_bytes
from ledgermq.client.producing.delivery import Duplicate
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.phases import Phase
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.errors import (
    DuplicateMessage,
    LedgerMQError,
    NotOwner,
    OutcomeUnknown,
    ResourceExhausted,
    Unavailable,
)
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.naming.message_ids import MESSAGE_ID, ids_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.message_ids import MessageIds
from ledgermq_ledger.log.partitions.producers import ProducerSession
from tests.property.test_partition_queue import AT, ModelBroker, Run

WINDOW_US = 30_000
NAMES = 10
Sent = tuple[Session, int, pa.RecordBatch]
"""A message on the line: session, sequence, rows."""


class Broker(ModelBroker):
    def __init__(self) -> None:
        super().__init__()
        self.ids = MessageIds(1000)
        self.names: list[bytes | None] = []
        self.times_us: list[int] = []

    def append(self, sent: Sent, now_us: int) -> int:
        session, sequence, rows = sent
        count = rows.num_rows
        wire = ProducerSession(session.id, session.epoch, sequence, session.opened_slot)
        known = self.producers.judge(wire, 1, 0, count)
        if known is not None:
            return known.base_offset
        ids = ids_of(rows)
        if ids and (found := self.ids.judge(PartitionId(1, 0), ids, now_us)) is not None:
            raise found.error
        base = len(self.log)
        self.log += [int(value) for value in rows.column("value").to_pylist()]
        self.names += [None if pairs is None else pairs[0]["value"] for pairs in rows.column("headers").to_pylist()]
        self.times_us += [now_us] * count
        self.slot += 1
        entry = fmt.BatchEntry(
            topic_id=1,
            partition=0,
            base_offset=base,
            record_count=count,
            producer_id=session.id,
            producer_epoch=session.epoch,
            sequence=sequence,
            message_ids=ids,
            ids_until_us=now_us + WINDOW_US,
        )
        self.producers.add(entry, self.slot)
        self.ids.add(entry, self.slot)
        return base


class DuplicatesRun(Run):
    broker: Broker

    def __init__(self, seed: int, *, forgetful: bool, doubles: bool) -> None:
        super().__init__(seed, forgetful=forgetful)
        self.broker = Broker()
        self.doubles = doubles
        self.on_line: list[tuple[Sent, Batch]] = []
        self.late: list[Sent] = []
        """Messages whose line was lost; a broker that slept may still find them."""
        self.batches: list[Batch] = []

    def now_us(self) -> int:
        return round(self.now_s * 1_000_000)

    def step(self) -> None:
        if self.doubles and self.late and self.random.random() < 0.2:
            self.find_late()
        super().step()

    def add(self) -> None:
        batch = Batch(AT, 1, self.now_s, Compressor("none"), has_ids=self.random.random() < 0.7)
        numbers = []
        for _ in range(self.random.randint(1, 4)):
            number = self.sent_records
            self.sent_records += 1
            numbers.append(number)
            name = Given(b"%d" % self.random.randrange(NAMES))
            row = (None, b"%d" % number, [(MESSAGE_ID, name)] if batch.has_ids else None, 0, None)
            batch.add(row, row_bytes(row))
        self.records[id(batch)] = numbers
        self.batches.append(batch)
        self.queue.add_sealed(batch)

    def send(self) -> None:
        batch = self.queue.next_to_send(self.now_s)
        if batch is not None:
            rows = decode_batch(batch.encode())
            self.queue.sent(batch)
            assert self.queue.session is not None
            assert batch.sequence is not None
            self.on_line.append(((self.queue.session, batch.sequence, rows), batch))

    def answer(self) -> None:
        if not self.on_line:
            return
        sent, batch = self.on_line.pop(0)
        fate = self.random.choices(["well", "refused", "full", "after"], [12, 1, 1, 1])[0]
        try:
            if fate == "refused":
                raise NotOwner("not mine")
            if fate == "full":
                raise ResourceExhausted("full", retry_after_ms=1)
            base = self.broker.append(sent, self.now_us())
            if fate == "after":
                raise self.random.choice([NotOwner("lost the term"), Unavailable("store"), OutcomeUnknown("store")])
        except DuplicateMessage as found:
            self.left_out(batch, found)
        except LedgerMQError as error:
            self.failed(batch, error)
        else:
            if not batch.outcome.settled:
                self.told(self.queue.stored(batch, base))

    def left_out(self, batch: Batch, found: DuplicateMessage) -> None:
        if batch.outcome.settled:
            return
        rows = {row: DuplicateOf(offset) for row, offset in found.stored}
        rows |= {row: DuplicateOf(None, first) for row, first in found.repeated}
        self.told(self.queue.duplicates(batch, rows, found, self.now_s))

    def find_late(self) -> None:
        """A message of a lost line reaches the broker, and its answer reaches nobody."""
        sent = self.late.pop(self.random.randrange(len(self.late)))
        try:
            self.broker.append(sent, self.now_us())
        except LedgerMQError:
            return

    def cut(self) -> None:
        arrived = self.random.randint(0, len(self.on_line))
        lost, self.on_line = self.on_line, []
        self.late += [sent for sent, _ in lost[arrived:]]
        for sent, _ in lost[:arrived]:
            try:
                self.broker.append(sent, self.now_us())
            except LedgerMQError:
                continue
        for _, batch in lost:
            self.failed(batch, Unavailable("lost"))

    def judge(self) -> None:
        log, names, times_us = self.broker.log, self.broker.names, self.broker.times_us
        last: dict[bytes, int] = {}
        for name, at_us in zip(names, times_us, strict=True):
            if name is not None:
                assert at_us >= last.get(name, -WINDOW_US) + WINDOW_US, "an id is stored once in its window"
                last[name] = at_us
        without_id = [number for number, name in zip(log, names, strict=True) if name is None]
        assert len(set(without_id)) == len(without_id), "no record is stored twice"
        offsets = []
        for batch in self.batches:
            assert batch.outcome.settled
            for row, number in enumerate(self.records[id(batch)] if batch.outcome.error is None else ()):
                result = batch.result(row)
                assert result.offset is not None
                if isinstance(result, Duplicate):
                    assert names[result.offset] is not None
                else:
                    assert log[result.offset] == number
                    offsets.append(result.offset)
        assert offsets == sorted(offsets), "records are stored in the order of sending"
        assert not self.not_stored & set(log), "what is said not to be stored is not"


def run(seed: int, steps: int, *, forgetful: bool, doubles: bool) -> DuplicatesRun:
    made = DuplicatesRun(seed, forgetful=forgetful, doubles=doubles)
    for _ in range(steps):
        made.step()
    made.finish()
    made.judge()
    return made


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=300, deadline=None)
def test_duplicates_are_left_out_whatever_happens_to_lines_and_owners(seed: int, steps: int) -> None:
    run(seed, steps, forgetful=True, doubles=False)


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=300, deadline=None)
def test_messages_that_are_found_late_store_nothing_twice(seed: int, steps: int) -> None:
    run(seed, steps, forgetful=False, doubles=True)


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=200, deadline=None)
def test_records_with_ids_have_an_outcome_while_the_broker_remembers_producers(seed: int, steps: int) -> None:
    made = run(seed, steps, forgetful=False, doubles=False)
    for batch in made.batches:
        assert not (batch.has_ids and made.unknown.intersection(made.records[id(batch)]))
    assert {number for batch in made.batches for number in made.records[id(batch)]} == set(range(made.sent_records))
    assert made.queue.phase in (Phase.SENDING, Phase.UNOPENED)
