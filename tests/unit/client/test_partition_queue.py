"""A producer's partition where batches were numbered before they came: none is sent under another's
number, whatever is given up.
"""

from __future__ import annotations

import random

import grpc
import pytest

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.errors import (
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    OutOfOrderSequence,
    Unauthorized,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from ledgermq.protocol.status import error_from_status
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources

AT = TopicPartition("t", 0)


def queue_of(*batches: Batch, idempotent: bool = True) -> PartitionQueue:
    sources = Sources(now_us=lambda: 0, random=random.Random(1))
    numbering = Numbering.NEW if idempotent else Numbering.NONE
    queue = PartitionQueue(AT, 1, numbering=numbering, window_batches=5, backoff=Backoff(sources, 0.001, 0.004))
    for batch in batches:
        queue.add_sealed(batch)
    return queue


def decided(sequence: int | None, born_s: float = 0.0) -> Batch:
    """Of ten records."""
    batch = Batch(AT, 1, born_s, Compressor("none"))
    batch.record_count = 10
    batch.decided_sequence = sequence
    return batch


def session(next_sequence: int = 0) -> Session:
    return Session(b"p" * 16, 7, next_sequence=next_sequence)


@pytest.mark.parametrize("opened", [True, False])
def test_what_comes_behind_a_batch_that_timed_out_unsent_is_given_up_with_it(opened: bool) -> None:
    first, second = decided(0, born_s=0), decided(10, born_s=40)
    queue = queue_of(first, second)
    if opened:
        queue.opened(session())
    failures = queue.expire(born_before_s=1)
    assert [(batch, type(error)) for batch, error in failures] == [(first, DeadlineExceeded), (second, Unavailable)]
    assert not queue
    assert queue.session is None


def test_what_is_added_behind_a_batch_that_timed_out_before_there_was_a_session_is_not_sent() -> None:
    queue = queue_of(decided(0))
    queue.expire(born_before_s=1)
    queue.add_sealed(late := decided(10, born_s=2))
    queue.opened(session())
    assert queue.next_to_send(2) is late
    assert isinstance(queue.gap_before(late), OutOfOrderSequence)


def test_without_decided_sequences_the_others_go_on() -> None:
    first, second = decided(None, born_s=0), decided(None, born_s=40)
    queue = queue_of(first, second)
    queue.opened(session())
    assert [batch for batch, _ in queue.expire(born_before_s=1)] == [first]
    assert queue.next_to_send(41) is second
    assert queue.gap_before(second) is None
    queue.sent(second)
    assert second.sequence == 0


def test_a_decided_sequence_has_to_be_the_next_of_the_session() -> None:
    first, second = decided(30), decided(40)
    queue = queue_of(first, second)
    queue.opened(session(next_sequence=30))
    for batch in (first, second):
        assert queue.next_to_send(0) is batch
        assert queue.gap_before(batch) is None
        queue.sent(batch)
    assert (first.sequence, second.sequence) == (30, 40)
    queue.failed(first, Unavailable("lost"), 0)
    queue.failed(second, Unavailable("lost"), 0)
    assert queue.next_to_send(9) is first
    assert queue.gap_before(first) is None, "it is sent again"


def test_nothing_is_sent_under_a_decided_sequence_without_a_session() -> None:
    batch = decided(0)
    queue = queue_of(batch, idempotent=False)
    assert queue.next_to_send(0) is batch
    assert isinstance(queue.gap_before(batch), OutOfOrderSequence)


def test_a_refusal_says_nothing_about_an_earlier_attempt_without_an_answer() -> None:
    """A right is revoked, or a topic removed, between two attempts; the first one may have stored the batch."""
    first, second = decided(None), decided(None)
    queue = queue_of(first, second)
    queue.opened(session())
    for error in (Unavailable("lost"), Unauthorized("revoked")):
        queue.sent(batch := queue.next_to_send(1000) or second)
        assert batch is first
        failures = queue.failed(first, error, 0)
    [(failed, error)] = failures
    assert failed is first
    assert isinstance(error, OutcomeUnknown)
    assert "revoked" in error.message
    queue.opened(session())
    queue.sent(second)
    [(_, refused)] = queue.failed(second, Unauthorized("revoked"), 0)
    assert isinstance(refused, Unauthorized)


def test_a_batch_that_was_refused_at_the_door_is_not_in_doubt_when_its_session_ends() -> None:
    """The partition of a timed message has moved: the new bundle does not know the session."""
    for is_refused in (True, False):
        batch = decided(None)
        queue = queue_of(batch)
        queue.opened(session())
        queue.sent(batch)
        moved = NotOwner("it is in bundle 2", owner="b:1")
        moved.not_stored = is_refused
        assert queue.failed(batch, moved, 0) == []
        queue.sent(queue.next_to_send(1000) or batch)
        failures = queue.failed(batch, UnknownProducer("not known here"), 1000)
        assert [type(error) for _, error in failures] == ([] if is_refused else [OutcomeUnknown])


def test_what_is_abandoned_is_in_doubt_only_if_it_was_sent_and_has_no_answer() -> None:
    """A topic was deleted and created again: one batch was refused for that, one is on its way, one was not sent."""
    refused, on_its_way, unsent = decided(None), decided(None), decided(None)
    queue = queue_of(refused, on_its_way, unsent)
    queue.opened(session())
    queue.sent(refused)
    queue.sent(on_its_way)
    error = Unavailable("it has another id now")
    error.not_stored = True
    assert queue.failed(refused, error, 0) == []
    failures = dict(queue.abandon(UnknownTopic("it was deleted")))
    kinds = [type(failures[batch]) for batch in (refused, on_its_way, unsent)]
    assert kinds == [UnknownTopic, OutcomeUnknown, UnknownTopic]


def test_an_attempt_without_a_connection_leaves_no_doubt() -> None:
    batch = decided(None)
    queue = queue_of(batch)
    queue.opened(session())
    queue.sent(batch)
    text = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"
    queue.failed(batch, error_from_status(grpc.StatusCode.UNAVAILABLE, text, (), "b:1"), 0)
    assert [type(error) for _, error in queue.expire(1)] == [DeadlineExceeded]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "RESOURCE_EXHAUSTED"])
def test_a_status_that_no_broker_sent_leaves_a_batch_in_doubt(code: str) -> None:
    batch = decided(None)
    queue = queue_of(batch)
    queue.opened(session())
    queue.sent(batch)
    assert queue.failed(batch, error_from_status(grpc.StatusCode[code], "the line broke", (), "b:1"), 0) == []
    assert [type(error) for _, error in queue.expire(1)] == [OutcomeUnknown]
