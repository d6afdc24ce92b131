"""A producer's partition against a broker's own judgement (`ledgermq_ledger.log.partitions.producers`), with every
fault that a line and an owner can have.

The model broker appends what the real fold accepts. Whatever is lost, answered late, refused or
forgotten: what was acknowledged is in the log once, in order, where the answer says; what is in the
log twice, or out of order, is a bug of either side.
"""

from __future__ import annotations

import random
from collections import deque

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.ordered_batches import Failure
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.errors import LedgerMQError, NotOwner, OutcomeUnknown, ResourceExhausted, Unavailable, UnknownTopic
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.partitions.producers import Producers, ProducerSession

AT = TopicPartition("t", 0)


class ModelBroker:
    """One partition's log of record numbers.

    `forget` drops what it knows of producers, as the cap in cluster.json does.
    """

    def __init__(self) -> None:
        self.log: list[int] = []
        self.slot = 1
        self.producers = Producers(100)

    def produce(self, session: Session, batch: Batch, records: list[int]) -> int:
        assert batch.sequence is not None
        wire = ProducerSession(session.id, session.epoch, batch.sequence, session.opened_slot)
        known = self.producers.judge(wire, 1, 0, batch.record_count)
        if known is not None:
            return known.base_offset
        base = len(self.log)
        self.log += records
        self.slot += 1
        entry = fmt.BatchEntry(
            topic_id=1,
            partition=0,
            base_offset=base,
            record_count=batch.record_count,
            producer_id=session.id,
            sequence=batch.sequence,
        )
        self.producers.add(entry, self.slot)
        return base

    def forget(self) -> None:
        forgotten_to = self.slot
        self.producers = Producers(100)
        self.producers.forgotten_to = forgotten_to
        self.slot += 1


class Run:
    """Random steps over one queue and one broker; `seed` decides everything."""

    def __init__(self, seed: int, *, forgetful: bool = True) -> None:
        self.forgets = 0.3 if forgetful else 0.0
        self.random = random.Random(seed)
        self.broker = ModelBroker()
        sources = Sources(now_us=lambda: 0, random=self.random)
        self.sources = sources
        self.queue = PartitionQueue(
            AT, 1, numbering=Numbering.NEW, window_batches=5, backoff=Backoff(sources, 0.001, 0.004)
        )
        self.line: deque[tuple[Session, Batch, list[int]]] = deque()
        self.records: dict[int, list[int]] = {}
        self.acknowledged: dict[int, int] = {}
        self.unknown: set[int] = set()
        self.not_stored: set[int] = set()
        self.sent_records = 0
        self.now_s = 0.0

    def step(self) -> None:
        self.now_s += 0.001
        self.random.choices(
            [self.add, self.send, self.answer, self.open, self.cut, self.broker.forget], [4, 6, 6, 3, 1, self.forgets]
        )[0]()

    def add(self) -> None:
        count = self.random.randint(1, 3)
        batch = Batch(AT, 1, self.now_s, Compressor("none"))
        batch.record_count = count
        self.records[id(batch)] = list(range(self.sent_records, self.sent_records + count))
        self.sent_records += count
        self.queue.add_sealed(batch)

    def open(self) -> None:
        if self.queue.wants_session(self.now_s):
            self.queue.session_asked()
            self.queue.opened(Session(self.sources.new_id(), self.broker.slot))

    def send(self) -> None:
        batch = self.queue.next_to_send(self.now_s)
        if batch is not None:
            self.queue.sent(batch)
            assert self.queue.session is not None
            self.line.append((self.queue.session, batch, self.records[id(batch)]))

    def answer(self) -> None:
        """The broker answers the oldest request: well, or with an error before or after it stored
        the batch.
        """
        if not self.line:
            return
        session, batch, records = self.line.popleft()
        fate = self.random.choices(["well", "refused", "full", "after"], [12, 1, 1, 1])[0]
        try:
            if fate == "refused":
                raise NotOwner("not mine", owner=self.random.choice([None, "b:1"]))
            if fate == "full":
                raise ResourceExhausted("full", retry_after_ms=1)
            base = self.broker.produce(session, batch, records)
            if fate == "after":
                raise self.random.choice([NotOwner("lost the term"), Unavailable("store"), OutcomeUnknown("store")])
        except LedgerMQError as error:
            self.failed(batch, error)
            return
        if batch.is_done:
            return
        for row, record in enumerate(() if batch.is_overdue else records):
            self.acknowledged[record] = base + row
        self.told(self.queue.stored(batch, base))

    def failed(self, batch: Batch, error: LedgerMQError) -> None:
        if not batch.is_done:
            self.told(self.queue.failed(batch, error, self.now_s))

    def cut(self) -> None:
        """The line is lost: some of what was on it arrived, in order, and no answer comes."""
        arrived = self.random.randint(0, len(self.line))
        lost = list(self.line)
        self.line.clear()
        for session, batch, records in lost[:arrived]:
            try:
                self.broker.produce(session, batch, records)
            except LedgerMQError:
                continue
        for _, batch, _ in lost:
            self.failed(batch, Unavailable("lost"))

    def told(self, failures: list[Failure]) -> None:
        for batch, error in failures:
            batch.outcome.settle(error)
            (self.unknown if isinstance(error, OutcomeUnknown) else self.not_stored).update(self.records[id(batch)])

    def finish(self) -> None:
        for _ in range(10_000):
            if not self.queue:
                return
            self.now_s += 0.01
            self.open()
            self.send()
            self.answer()
        raise AssertionError("the queue never becomes empty")


class DecidedRun(Run):
    """Batches come with the sequences that were decided for them, here the records' own numbers, in
    a session that is given once. They time out, are given up, or do not come at all."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.given: Session | None = Session(self.sources.new_id(), self.broker.slot)

    def step(self) -> None:
        if self.random.random() < 0.15:
            self.random.choices([self.expire, self.abandon, self.miss], [6, 1, 1])[0]()
        super().step()

    def add(self) -> None:
        first = self.sent_records
        super().add()
        *_, batch = self.queue.batches()
        batch.decided_sequence = first

    def miss(self) -> None:
        self.sent_records += self.random.randint(1, 3)

    def expire(self) -> None:
        self.told(self.queue.expire(self.now_s - self.random.uniform(0, 0.02)))

    def abandon(self) -> None:
        self.told(self.queue.abandon(UnknownTopic("gone")))

    def open(self) -> None:
        if not self.queue.wants_session(self.now_s):
            return
        if self.given is None:
            self.told(self.queue.abandon(OutcomeUnknown("the given session has ended")))
        else:
            self.queue.opened(self.given)
            self.given = None

    def send(self) -> None:
        batch = self.queue.next_to_send(self.now_s)
        if batch is not None and (gap := self.queue.gap_before(batch)) is not None:
            self.told(self.queue.abandon(gap))
        else:
            super().send()


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=400, deadline=None)
def test_decided_sequences_are_stored_up_to_a_point_and_nothing_behind_it(seed: int, steps: int) -> None:
    run = DecidedRun(seed)
    for _ in range(steps):
        run.step()
    run.finish()
    assert run.broker.log == list(range(len(run.broker.log)))
    assert run.acknowledged == {record: record for record in run.acknowledged}
    assert not run.not_stored & set(run.broker.log), "what is said not to be stored is not"


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=400, deadline=None)
def test_acknowledged_records_are_stored_once_in_order_at_their_offsets(seed: int, steps: int) -> None:
    run = Run(seed)
    for _ in range(steps):
        run.step()
    run.finish()
    log = run.broker.log
    assert len(set(log)) == len(log), "no record is stored twice"
    assert {record: offset for offset, record in enumerate(log) if record in run.acknowledged} == run.acknowledged
    stored = [record for record in log if record in run.acknowledged]
    assert stored == sorted(stored), "in the order of sending"
    assert not run.not_stored & set(log), "what is said not to be stored is not"
    assert run.acknowledged.keys() | run.unknown | run.not_stored == set(range(run.sent_records)), "everybody is told"


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=200, deadline=None)
@example(
    1230966, 97
)  # later batches were acknowledged while the oldest was in doubt, until the broker remembered five newer ones
def test_a_broker_that_remembers_gets_every_record(seed: int, steps: int) -> None:
    run = Run(seed, forgetful=False)
    for _ in range(steps):
        run.step()
    run.finish()
    assert run.broker.log == list(range(run.sent_records))
    assert run.acknowledged == {record: record for record in range(run.sent_records)}
