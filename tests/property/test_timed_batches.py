"""Batches whose records have a time of their own, among others that have not, in one partition: against a broker's
own judgement, with every fault of `tests.property.test_partition_queue`.

Each send ends within its time, with what is true of its record. No other record is lost, stored twice, or left in
doubt because of it.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.ordered_batches import Failure
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import OutcomeUnknown
from tests.property.test_partition_queue import Run


class TimedRun(Run):
    """Half of the batches have a time; the queue is looked at before each sending, as the dispatcher does."""

    def __init__(self, seed: int, *, forgetful: bool) -> None:
        super().__init__(seed, forgetful=forgetful)
        self.buffer = SendBuffer(ProducerSettings())
        self.timed: list[Batch] = []
        self.plain_records: set[int] = set()

    def add(self) -> None:
        super().add()
        *_, batch = self.queue.batches()
        self.buffer.admit(batch.buffer_bytes)
        if self.random.random() < 0.5:
            batch.end_by(self.now_s + self.random.uniform(0, 0.03))
            self.queue.deadlines.add(batch)
            self.timed.append(batch)
        else:
            self.plain_records.update(self.records[id(batch)])

    def send(self) -> None:
        is_late = self.random.random() < 0.1
        self.told(self.queue.overdue(self.now_s, self.now_s - 0.01 if is_late else self.now_s))
        self.told(self.queue.drop_overdue())
        for batch in self.timed:
            assert is_late or batch.outcome.settled or batch.deadline_s is None or batch.deadline_s > self.now_s
        super().send()

    def told(self, failures: list[Failure]) -> None:
        for batch, error in failures:
            if not batch.outcome.settled:
                kind = self.unknown if isinstance(error, OutcomeUnknown) else self.not_stored
                kind.update(self.records[id(batch)])
        self.buffer.give_up(failures)

    def answer(self) -> None:
        waiting = [batch for _, batch, _ in self.line if not batch.is_done]
        super().answer()
        for batch in waiting:
            if batch.is_done and batch.data is None and batch.base_offset != -1:
                self.buffer.release(batch.buffer_bytes)

    def judge(self) -> None:
        log = self.broker.log
        assert len(set(log)) == len(log), "no record is stored twice"
        assert {record: offset for offset, record in enumerate(log) if record in self.acknowledged} == self.acknowledged
        stored = [record for record in log if record in self.acknowledged]
        assert stored == sorted(stored), "in the order of sending"
        assert not self.not_stored & set(log), "what is said not to be stored is not"
        assert not self.acknowledged.keys() & (self.unknown | self.not_stored), "each is told once"
        told = self.acknowledged.keys() | self.unknown | self.not_stored
        assert told == set(range(self.sent_records)), "all are told"
        assert self.buffer.held_bytes == 0


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=400, deadline=None)
def test_each_record_is_told_truly_and_within_its_time(seed: int, steps: int) -> None:
    run = TimedRun(seed, forgetful=True)
    for _ in range(steps):
        run.step()
    run.finish()
    run.judge()


@given(st.integers(0, 2**32), st.integers(1, 150))
@settings(max_examples=400, deadline=None)
def test_others_are_stored_once_whatever_is_overdue_beside_them(seed: int, steps: int) -> None:
    run = TimedRun(seed, forgetful=False)
    for _ in range(steps):
        run.step()
    run.finish()
    run.judge()
    assert run.plain_records <= run.acknowledged.keys()
    stored = [record for record in run.broker.log if record in run.plain_records]
    assert stored == sorted(run.plain_records)


def test_the_run_reaches_what_it_is_about() -> None:
    """Records that were never sent, that were told as unknown and are stored nevertheless, and not."""
    reached = set()
    for seed in range(60):
        run = TimedRun(seed, forgetful=False)
        for _ in range(100):
            run.step()
        run.finish()
        log = set(run.broker.log)
        reached |= {"unsent"} if run.not_stored else set()
        reached |= {"stored"} if run.unknown & log else set()
        reached |= {"not stored"} if run.unknown - log else set()
    assert reached == {"unsent", "stored", "not stored"}
