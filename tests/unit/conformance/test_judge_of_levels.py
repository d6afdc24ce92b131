"""What the judge of `ledgermq conformance` says of leases and transactions."""

from __future__ import annotations

from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_tools.conformance.judging.judge import Judge

HERE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
EPOCH, LEASE = 7, 3


def judge() -> Judge:
    return Judge(frozenset({"NOT_OWNER", "UNAVAILABLE"}), needs_sessions=True)


def leased(judged: Judge, first: int, last: int) -> None:
    request = pb.ShareFetchRequest(
        group="g", member_id="m", partitions=[pb.SharePartition(topic="t", partition=n) for n in (0, 1)]
    )
    given = pb.LeasedPartition(
        topic="t", partition=1, epoch=EPOCH, lease=LEASE, ranges=[pb.LeasedRange(first=first, last=last, deliveries=1)]
    )
    call = judged.asked("ShareFetch", HERE, request, 0)
    judged.answered(call, Frame(pb.ShareFetchHeader(partitions=[given]), []), 0)


def answer(judged: Judge, first: int, last: int, word: int = pb.ACCEPT, lease: int = LEASE, member: str = "m") -> None:
    span = pb.SharedSpan(first=first, last=last, epoch=EPOCH, lease=lease, word=word)  # type: ignore[arg-type]
    said = pb.SharePartitionAnswer(topic="t", partition=1, spans=[span])
    judged.lost(
        judged.asked("ShareAnswer", HERE, pb.ShareAnswerRequest(group="g", member_id=member, partitions=[said]), 0)
    )


def test_an_answer_for_what_is_leased_is_right_and_may_be_repeated() -> None:
    judged = judge()
    leased(judged, 4, 6)
    assert judged.leases.unanswered == 3
    answer(judged, 4, 5, pb.RENEW)
    assert judged.leases.unanswered == 3
    answer(judged, 4, 5)
    answer(judged, 4, 5)
    answer(judged, 6, 6, pb.RETURN)
    assert judged.findings == []
    assert judged.leases.unanswered == 0


def test_an_answer_for_what_is_not_leased_is_found() -> None:
    judged = judge()
    leased(judged, 4, 6)
    answer(judged, 0, 6)
    assert judged.findings == ["t-1: answered for a message that is not leased to it, offset 0"]


def test_another_lease_is_found() -> None:
    judged = judge()
    leased(judged, 4, 6)
    answer(judged, 4, 6, lease=LEASE + 1)
    assert judged.findings == ["t-1: answered under lease 4 of epoch 7, which no answer of ShareFetch has named"]


def test_another_word_is_found() -> None:
    judged = judge()
    leased(judged, 4, 6)
    answer(judged, 4, 6)
    answer(judged, 5, 5, pb.RETURN)
    assert judged.findings == ["t-1: said RETURN of offset 5, after ACCEPT under the same lease"]


def test_a_member_of_a_queue_has_an_id() -> None:
    judged = judge()
    leased(judged, 4, 4)
    answer(judged, 4, 4, member="")
    assert judged.findings == ["queue group g: a member draws an id for itself, and sends it with each call"]


def test_errors_of_leases_belong_to_the_partitions_that_they_name() -> None:
    judged = judge()
    request = pb.ShareFetchRequest(
        group="g", member_id="m", partitions=[pb.SharePartition(topic="t", partition=n) for n in (0, 1)]
    )
    refused = pb.LeasedPartition(topic="t", partition=1, error=pb.Error(code="UNKNOWN_TOPIC", message="gone"))
    judged.answered(
        judged.asked("ShareFetch", HERE, request, 0), Frame(pb.ShareFetchHeader(partitions=[refused]), []), 0
    )
    assert judged.findings == ["t-1: the broker refused ShareFetch with UNKNOWN_TOPIC: gone"]


REF = pb.TransactionRef(transactional_id="x", coordinator=2, producer_id=b"p" * 16, epoch=1, number=1)


def begin(judged: Judge) -> None:
    call = judged.asked("InitTransactions", HERE, pb.InitTransactionsRequest(transactional_id="x"), 0)
    judged.answered(call, pb.InitTransactionsResponse(producer_id=REF.producer_id, epoch=1, coordinator=2), 0)


def stage(judged: Judge, sequence: int, crc: int = 1, error: pb.Error | None = None, *, is_lost: bool = False) -> None:
    batch = pb.ProduceBatch(topic="t", partition=0, crc=crc, length=10)
    header = pb.StageHeader(transaction=REF, batches=[pb.StageBatch(batch=batch, sequence=sequence)])
    call = judged.asked("Stage", HERE, Frame(header, []), 0)
    if is_lost:
        judged.lost(call)
    else:
        result = pb.StageResult(topic_id=9, bundle=1, error=error)
        judged.answered(call, pb.StageResponse(results=[result]), 0, planned=error is not None)


def commit(judged: Judge, batches: int) -> Any:
    counts = [pb.StagedCount(topic_id=9, partition=0, batches=batches)] if batches else []
    part = pb.TransactionPart(bundle=1, counts=counts)
    request = pb.EndTransactionRequest(transaction=REF, outcome=pb.COMMITTED, parts=[part])
    return judged.asked("EndTransaction", HERE, request, 0)


def test_a_transaction_that_counts_its_batches_is_right() -> None:
    judged = judge()
    begin(judged)
    stage(judged, 0, is_lost=True)
    stage(judged, 0)
    stage(judged, 1, crc=2)
    commit(judged, 2)
    assert judged.findings == []


def test_a_commit_with_another_count_is_found() -> None:
    judged = judge()
    begin(judged)
    stage(judged, 0, is_lost=True)
    commit(judged, 1)
    assert judged.findings == ["transaction x: commits 1 batches of partition 0 of topic 9; 0 were answered as staged"]


def test_a_sequence_that_is_left_out_is_found() -> None:
    judged = judge()
    begin(judged)
    stage(judged, 1)
    assert judged.findings == ["transaction x, t-0: sequences count batches from 0; 1 comes after 0 batches"]


def test_other_bytes_of_a_staged_batch_are_found() -> None:
    judged = judge()
    begin(judged)
    stage(judged, 0, is_lost=True)
    stage(judged, 0, crc=2)
    assert judged.findings == ["transaction x, t-0: repeated sequence 0 with other bytes than before"]


def test_an_epoch_that_was_never_answered_is_found() -> None:
    judged = judge()
    stage(judged, 0)
    assert judged.findings == ["transaction x: staged under epoch 1, which InitTransactions has not answered to it"]


def test_a_fenced_client_that_begins_again_is_found() -> None:
    judged = judge()
    begin(judged)
    stage(judged, 0, error=pb.Error(code="TRANSACTION_FENCED"))
    begin(judged)
    assert len(judged.findings) == 1
    assert "began again after TRANSACTION_FENCED" in judged.findings[0]
    other = judge()
    begin(other)
    other.failed(commit(other, 0), pb.Error(code="TRANSACTION_FENCED"), 0, planned=False)
    begin(other)
    assert len(other.findings) == 1
