"""The phases of a producer's partition: the table is whole, and every way out of trouble leads back
to sending, but for a session that was given and has ended.
"""

from __future__ import annotations

import random

import pytest

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import NEXT, Event, Numbering, Phase
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.errors import InvalidRecord, OutcomeUnknown, Unavailable, UnknownProducer
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources

AT = TopicPartition("t", 0)


def queue_with(numbering: Numbering, session: Session | None = None) -> PartitionQueue:
    sources = Sources(now_us=lambda: 0, random=random.Random(1))
    return PartitionQueue(
        AT, 1, numbering=numbering, window_batches=5, backoff=Backoff(sources, 0.001, 0.004), session=session
    )


def sent(queue: PartitionQueue, count: int = 1) -> list[Batch]:
    batches = []
    for _ in range(count):
        batch = Batch(AT, 1, 0.0, Compressor("none"))
        batch.record_count = 1
        queue.add_sealed(batch)
        assert queue.next_to_send(99.0) is batch
        queue.sent(batch)
        batches.append(batch)
    return batches


def opened() -> PartitionQueue:
    queue = queue_with(Numbering.NEW)
    queue.session_asked()
    queue.opened(Session(b"p" * 16, 7))
    return queue


def test_only_the_events_of_the_table_are_possible() -> None:
    for phase in Phase:
        for event in Event:
            queue = queue_with(Numbering.NEW)
            queue.phase = phase
            if (phase, event) in NEXT:
                queue._move(event)
                assert queue.phase is NEXT[phase, event]
            else:
                with pytest.raises(AssertionError):
                    queue._move(event)


def test_every_phase_but_the_last_leads_back_to_sending() -> None:
    for phase in set(Phase) - {Phase.OVER}:
        reached = {phase}
        while more := {NEXT[at, event] for at, event in NEXT if at in reached} - reached:
            reached |= more
        assert Phase.SENDING in reached
    assert {NEXT[at, event] for at, event in NEXT if at is Phase.OVER} == {Phase.OVER}


def test_a_failed_attempt_drains_and_sends_again_in_the_same_session() -> None:
    queue = opened()
    first, second = sent(queue, 2)
    assert queue.failed(first, Unavailable("lost"), 0.0) == []
    assert queue.phase is Phase.DRAINING
    assert queue.next_to_send(99.0) is None
    assert queue.failed(second, Unavailable("lost"), 0.0) == []
    assert queue.phase is Phase.SENDING
    assert queue.next_to_send(99.0) is first


def test_a_broken_session_ends_when_all_is_answered_and_another_is_opened() -> None:
    queue = opened()
    first, second = sent(queue, 2)
    queue.failed(first, UnknownProducer("forgotten"), 0.0)
    assert queue.phase is Phase.ENDING
    assert not queue.wants_session(99.0)
    queue.failed(second, UnknownProducer("forgotten"), 0.0)
    assert queue.phase is Phase.UNOPENED
    assert queue.session is None
    assert queue.wants_session(99.0)


def test_without_numbering_there_is_no_session_to_open() -> None:
    queue = queue_with(Numbering.NONE)
    (batch,) = sent(queue)
    assert queue.phase is Phase.SENDING
    assert batch.sequence is None
    assert [each for each, _ in queue.failed(batch, InvalidRecord("bad"), 0.0)] == [batch]
    assert queue.phase is Phase.SENDING
    assert not queue.wants_session(99.0)


def test_nothing_follows_a_given_session() -> None:
    queue = queue_with(Numbering.GIVEN, Session(b"p" * 16, 7))
    first, second = sent(queue, 2)
    queue.failed(second, Unavailable("lost"), 0.0)
    queue.failed(first, InvalidRecord("bad"), 0.0)
    assert queue.phase is Phase.OVER
    assert not queue.wants_session(99.0)
    queue.add_sealed(Batch(AT, 1, 0.0, Compressor("none")))
    assert queue.next_to_send(99.0) is None
    assert {type(error) for _, error in queue.expire(born_before_s=-1.0)} == {InvalidRecord}
    assert not queue


def test_a_partition_that_was_given_no_session_refuses_everything() -> None:
    queue = queue_with(Numbering.GIVEN)
    queue.add_sealed(batch := Batch(AT, 1, 0.0, Compressor("none")))
    assert [(each, type(error)) for each, error in queue.expire(born_before_s=-1.0)] == [(batch, OutcomeUnknown)]


def test_an_answer_that_comes_after_everything_was_given_up_opens_the_queue_once() -> None:
    queue = queue_with(Numbering.NEW)
    queue.session_asked()
    queue.abandon(Unavailable("gone"))
    assert queue.phase is Phase.OPENING, "no second question"
    queue.opened(Session(b"p" * 16, 7))
    assert queue.phase is Phase.SENDING
