"""Idempotent producers of the Kafka protocol: their ids and sequences, and what is behind a refused batch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import (
    BacklogQuotaExceeded,
    InvalidRecord,
    LedgerMQError,
    NotOwner,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerEpochFenced,
    ResourceExhausted,
    SequencePassed,
    StoreFull,
    UnknownProducer,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import PRODUCER_ID_BYTES, WINDOW_BATCHES
from ledgermq.protocol.naming.producer_ids import kafka_producer_id, producer_bytes, unwrapped
from ledgermq.protocol.status import error_from_proto, error_to_proto
from ledgermq_broker.kafka.wire.batches.head import read_head
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.sequences import RefusedBatches, session_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.partitions.producers import Producers, ProducerSession
from tests.worlds.kafka_batches import Fields, Row, batch_of

LANE = (producer_bytes(7), "t", 0)


@given(st.integers(0, 2**63 - 1))
def test_a_producer_id_has_one_form(number: int) -> None:
    assert len(producer_bytes(number)) == PRODUCER_ID_BYTES
    assert kafka_producer_id(producer_bytes(number)) == number


def test_an_id_of_our_own_client_is_none_of_kafka() -> None:
    assert kafka_producer_id(random.Random(1).randbytes(16)) is None


@given(st.integers(0, 2**40), st.integers(-(2**30) + 1, 2**30 - 1))
def test_sequences_go_on_where_kafkas_wrap(expected: int, away: int) -> None:
    """Also of batches that are sent again, which are behind what is expected."""
    meant = expected + away
    if meant < 0 or meant % 2**31 == 0:
        return
    assert unwrapped(meant % 2**31, expected) == meant


@pytest.mark.parametrize(
    ("sequence", "near", "meant"),
    [
        (0, 0, 0),
        (0, 2**31, 2**31),
        (0, 2**33, 2**33),
        (0, 500, 0),
        (0, 2**31 + 500, 0),
        (2**31 - 1, 2**31, 2**31 - 1),
        (2**31 - 1, 0, 2**31 - 1),
        (5, 2**31 - 3, 2**31 + 5),
    ],
)
def test_zero_begins_a_new_epoch(sequence: int, near: int, meant: int) -> None:
    assert unwrapped(sequence, near) == meant


def test_the_session_of_a_batch() -> None:
    head = read_head(batch_of([Row()], Fields(producer=(7, 2, 5))))
    session = pb.ProducerSession(id=producer_bytes(7), epoch=2, sequence=2**31 + 5, opened_slot=9)
    assert session_of(head, 2**31, 9) == session
    assert session_of(read_head(batch_of([Row()])), 0, 0) is None


def test_a_fenced_epoch_is_told_from_an_unknown_producer() -> None:
    """Clients begin a new epoch after the one, and lose their place after the other. Older clients get what they
    know.
    """
    producers = Producers(10)
    producers.add(entry(ProducerSession(bytes(16), 2, 0), 5, 0), 1)
    with pytest.raises(ProducerEpochFenced) as fenced:
        producers.judge(ProducerSession(bytes(16), 1, 5), 1, 0, 5)
    message = error_to_proto(fenced.value)
    assert message.code == UnknownProducer.code
    assert type(error_from_proto(message)) is ProducerEpochFenced
    assert code_of(fenced.value, Area.PRODUCE) == Code.INVALID_PRODUCER_EPOCH
    assert code_of(UnknownProducer("x"), Area.PRODUCE) == Code.UNKNOWN_PRODUCER_ID


def test_what_was_stored_long_ago_is_told_from_a_gap() -> None:
    """A client takes the one for success, and a gap at its oldest batch for the end of its session."""
    producers = Producers(10)
    for number in range(8):
        producers.add(entry(ProducerSession(bytes(16), 0, 5 * number), 5, 5 * number), 1)
    for sequence, kind in (
        (0, SequencePassed),
        (10, SequencePassed),
        (12, OutOfOrderSequence),
        (45, OutOfOrderSequence),
    ):
        with pytest.raises(OutOfOrderSequence) as found:
            producers.judge(ProducerSession(bytes(16), 0, sequence), 1, 0, 5)
        assert type(found.value) is kind
        assert error_to_proto(found.value).code == OutOfOrderSequence.code
        assert type(error_from_proto(error_to_proto(found.value))) is kind
    assert code_of(SequencePassed("x"), Area.PRODUCE) == Code.DUPLICATE_SEQUENCE_NUMBER


def entry(session: ProducerSession, count: int, base: int) -> fmt.BatchEntry:
    return fmt.BatchEntry(
        topic_id=1,
        partition=0,
        record_count=count,
        base_offset=base,
        producer_id=session.id,
        producer_epoch=session.epoch,
        sequence=session.sequence,
    )


def session(sequence: int, epoch: int = 0) -> pb.ProducerSession:
    return pb.ProducerSession(id=producer_bytes(7), epoch=epoch, sequence=sequence)


RETRIED = [kind("x") for kind in (ResourceExhausted, NotOwner, OutcomeUnknown, StoreFull, BacklogQuotaExceeded)]
GAP = OutOfOrderSequence("gap")


@pytest.mark.parametrize("head", RETRIED)
@pytest.mark.parametrize("behind", [GAP, UnknownProducer("begins with 0")])
def test_those_behind_a_refused_batch_get_its_code(head: LedgerMQError, behind: LedgerMQError) -> None:
    refused = RefusedBatches()
    assert refused.answered(LANE, session(0), head) is head
    assert [refused.answered(LANE, session(n), behind) for n in (5, 10)] == [head, head]
    assert refused.answered(LANE, session(0), None) is None
    assert refused.answered(LANE, session(5), GAP) is GAP
    assert len(refused) == 0


def test_those_behind_a_refused_batch_at_the_wrap_get_its_code() -> None:
    """What a batch of a transaction says is not unwrapped."""
    refused = RefusedBatches()
    first = NotOwner("moved")
    assert refused.answered(LANE, session(2**31 - 1), first) is first
    assert refused.answered(LANE, session(0), GAP) is first
    assert refused.answered(LANE, session(2**31 - 1), None) is None
    assert len(refused) == 0


def test_a_gap_at_the_head_stays_a_gap() -> None:
    assert RefusedBatches().answered(LANE, session(5), GAP) is GAP


def test_a_batch_that_is_refused_for_good_holds_nothing_back() -> None:
    refused = RefusedBatches()
    wrong = InvalidRecord("no key")
    assert refused.answered(LANE, session(0), wrong) is wrong
    assert refused.answered(LANE, session(5), GAP) is GAP
    assert refused.answered(LANE, session(5), NotOwner("x")) is not None
    assert refused.answered(LANE, session(5), wrong) is wrong
    assert refused.answered(LANE, session(9), GAP) is GAP


def test_a_later_batch_that_is_stored_shows_that_the_first_was() -> None:
    refused = RefusedBatches()
    refused.answered(LANE, session(5), OutcomeUnknown("?"))
    assert refused.answered(LANE, session(10), None) is None
    assert refused.answered(LANE, session(20), GAP) is GAP


def test_an_earlier_batch_does_not_end_it() -> None:
    """Its answer was lost, and it is sent again."""
    refused = RefusedBatches()
    head = ResourceExhausted("later")
    refused.answered(LANE, session(5), head)
    assert refused.answered(LANE, session(0), None) is None
    assert refused.answered(LANE, session(10), GAP) is head


def test_a_new_epoch_ends_it_and_a_fence_is_shown() -> None:
    refused = RefusedBatches()
    refused.answered(LANE, session(5), ResourceExhausted("later"))
    fenced = ProducerEpochFenced("fenced")
    assert refused.answered(LANE, session(10), fenced) is fenced
    assert refused.answered(LANE, session(10, 1), GAP) is GAP


def test_other_lanes_are_others() -> None:
    refused = RefusedBatches()
    refused.answered(LANE, session(0), ResourceExhausted("later"))
    assert refused.answered((producer_bytes(8), "t", 0), session(5), GAP) is GAP
    assert refused.answered((producer_bytes(7), "t", 1), session(5), GAP) is GAP


def test_lanes_are_bounded() -> None:
    refused = RefusedBatches(3)
    for partition in range(10):
        refused.answered((producer_bytes(7), "t", partition), session(0), NotOwner("x"))
    assert len(refused) == 3


@given(st.lists(st.sampled_from(["store", "refuse", "unknown"]), max_size=40), st.integers(1, WINDOW_BATCHES))
def test_no_client_loses_its_session_under_refusals(fates: list[str], window: int) -> None:
    """A client sends windows of batches to a broker that remembers producers as ours does, and some are refused before
    they are judged, or stored without an answer. Whatever happens, nothing is stored twice or out of order, and the
    client never gets a code after which it would begin a new epoch.
    """
    producers, refused = Producers(10), RefusedBatches()
    log: list[int] = []
    fate = iter(fates)
    todo = list(range(12))
    while todo:
        for number in list(todo[:window]):
            error: LedgerMQError | None = None
            what = next(fate, "store")
            if what == "refuse":
                error = ResourceExhausted("later")
            else:
                ours = ProducerSession(producer_bytes(7), 0, 5 * number, 1)
                try:
                    if producers.judge(ours, 1, 0, 5) is None:
                        producers.add(entry(ours, 5, 5 * len(log)), 2)
                        log.append(number)
                    error = OutcomeUnknown("?") if what == "unknown" else None
                except LedgerMQError as judged:
                    error = judged
            answer = refused.answered(LANE, session(5 * number), error)
            if answer is None or code_of(answer, Area.PRODUCE) == Code.DUPLICATE_SEQUENCE_NUMBER:
                assert number in log
                todo.remove(number)
            else:
                assert not isinstance(answer, OutOfOrderSequence | UnknownProducer)
    assert log == list(range(12))
