"""What the judge of `ledgermq conformance` says of single calls."""

from __future__ import annotations

from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_tools.conformance.judging.judge import Judge

HERE, OTHER = "127.0.0.1:1", "127.0.0.1:2"


def judge() -> Judge:
    return Judge(frozenset({"NOT_OWNER", "UNAVAILABLE"}), needs_sessions=True)


def batch(sequence: int, crc: int = 1, *, id: bytes = b"a" * 16, partition: int = 0) -> Any:  # noqa: A002  as the field
    session = pb.ProducerSession(id=id, sequence=sequence)
    entry = pb.ProduceBatch(topic="t", partition=partition, crc=crc, length=10, producer=session)
    return Frame(pb.ProduceHeader(batches=[entry]), [])


def opened(judged: Judge, *partitions: int) -> None:
    places = [pb.TopicPartition(topic="t", partition=partition) for partition in partitions]
    request = pb.OpenProducerRequest(partitions=places)
    judged.answered(judged.asked("OpenProducer", HERE, request, 0), pb.OpenProducerResponse(), 0)


def produce(judged: Judge, request: Any, now_s: float = 0, error: pb.Error | None = None, at: str = HERE) -> None:
    call = judged.asked("Produce", at, request, now_s)
    judged.answered(call, pb.ProduceResponse(results=[pb.ProduceResult(error=error)]), now_s, planned=True)


def test_a_good_client_is_not_blamed() -> None:
    judged = judge()
    opened(judged, 0)
    judged.lost(judged.asked("ProduceOnce", HERE, batch(0), 0))
    produce(judged, batch(0))
    produce(judged, batch(3, crc=2), error=pb.Error(code="UNAVAILABLE", retry_after_ms=400))
    produce(judged, batch(3, crc=2), now_s=0.4)
    assert judged.findings == []


def test_five_batches_may_be_open() -> None:
    judged = judge()
    opened(judged, 0)
    for number in range(5):
        judged.asked("Produce", HERE, batch(number, crc=number), 0)
    assert judged.findings == []
    judged.asked("Produce", HERE, batch(5, crc=5), 0)
    assert judged.findings == ["t-0: more than 5 batches of a session are without an answer"]


def test_each_partition_needs_a_session() -> None:
    judged = judge()
    opened(judged, 0, 1)
    produce(judged, batch(0))
    produce(judged, batch(1, crc=2, partition=1))
    assert judged.findings == ["t-1: uses the session of t-0; each partition needs its own"]


def test_the_same_batch_under_another_session() -> None:
    judged = judge()
    opened(judged, 0)
    judged.lost(judged.asked("ProduceOnce", HERE, batch(0), 0))
    produce(judged, batch(0, id=b"b" * 16))
    assert judged.findings == [
        "t-0: sent the batch of sequence 0 again under another session or sequence (0): it could be stored twice"
    ]


def redirect(judged: Judge, times: int) -> None:
    for _ in range(times):
        produce(judged, batch(0), error=pb.Error(code="NOT_OWNER", owner=OTHER))


def test_a_named_owner_is_asked() -> None:
    judged = judge()
    opened(judged, 0)
    redirect(judged, 4)
    produce(judged, batch(0), at=OTHER)
    redirect(judged, 4)
    assert judged.findings == []
    redirect(judged, 1)
    assert judged.findings == [
        f"t-0: went on asking {HERE} (ProduceOnce), though it named {OTHER} as the owner 5 times"
    ]


def test_an_owner_that_has_ended_cannot_be_asked() -> None:
    judged = judge()
    opened(judged, 0)
    judged.gone.add(OTHER)
    redirect(judged, 9)
    assert judged.findings == []


def test_refusals_of_the_broker_are_named() -> None:
    judged = judge()
    call = judged.asked("FetchOnce", HERE, pb.FetchRequest(partitions=[pb.FetchPartition(topic="t")]), 0)
    judged.failed(call, pb.Error(code="INVALID_REQUEST", message="no such field"), 0, planned=False)
    assert judged.findings == ["t-0: the broker refused FetchOnce with INVALID_REQUEST: no such field"]


def heartbeat(
    judged: Judge, step: pb.GroupStep, seen: int, epoch: int = 0, given: tuple[int, ...] = (), now_s: float = 0
) -> None:
    request = pb.GroupHeartbeatRequest(group="g", member_id="m", seen_epoch=seen, step=step)
    partitions = [pb.GivenPartition(topic="t", partition=partition, epoch=epoch) for partition in given]
    answer = pb.GroupHeartbeatResponse(group_epoch=epoch, assigned=partitions)
    judged.answered(judged.asked("GroupHeartbeat", HERE, request, now_s), answer, now_s)


def commit(judged: Judge, counter: int, offset: int, epoch: int = 3) -> None:
    asked = pb.OffsetCommit(topic="t", partition=0, epoch=epoch, counter=counter, offset=offset)
    judged.asked("CommitOffsets", HERE, pb.CommitOffsetsRequest(group="g", member_id="m", commits=[asked]), 0)


def test_a_good_member_is_not_blamed() -> None:
    judged = judge()
    heartbeat(judged, pb.JOIN, 0, 3, (0, 1))
    commit(judged, 1, 5)
    commit(judged, 1, 5)  # the answer was lost
    commit(judged, 2, 6)
    heartbeat(judged, pb.STAY, 3, 4, (0,))
    heartbeat(judged, pb.LEAVE, 4)
    assert judged.findings == []
    assert judged.membership.have_left


def test_a_member_joins_first_and_reports_the_epoch() -> None:
    judged = judge()
    heartbeat(judged, pb.STAY, 0, 3)
    heartbeat(judged, pb.STAY, 1, 3)
    assert judged.findings == [
        "group g: the first heartbeat of a member is JOIN, not STAY",
        "group g: seen_epoch is the group_epoch of the last answer, 3, not 1",
    ]
    assert not judged.membership.have_left


def test_commits_count_up_under_their_epoch() -> None:
    judged = judge()
    heartbeat(judged, pb.JOIN, 0, 3, (0,))
    commit(judged, 1, 5)
    commit(judged, 1, 6)
    commit(judged, 2, 7, epoch=1)
    assert [finding.split(";")[0] for finding in judged.findings] == [
        "t-0: the counter of commits has to grow, else brokers pass them over",
        "t-0: committed under epoch 1",
    ]


def test_a_member_reads_what_it_was_given() -> None:
    judged = judge()
    heartbeat(judged, pb.JOIN, 0, 3, (0,))
    request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t")])
    judged.asked("FetchOnce", HERE, request, 0)
    heartbeat(judged, pb.STAY, 3, 4, (), now_s=10)
    judged.asked("FetchOnce", HERE, request, 12)  # on its way when the answer came
    assert judged.findings == []
    judged.asked("FetchOnce", HERE, request, 14)
    assert judged.findings == ["t-0: fetched from a partition that the group has not given to it"]


def test_the_coordinator_of_a_group_is_asked() -> None:
    judged = judge()
    request = pb.GroupHeartbeatRequest(group="g", member_id="m", step=pb.JOIN)
    for address in (HERE, OTHER) * 3:
        call = judged.asked("GroupHeartbeat", address, request, 0)
        judged.failed(call, pb.Error(code="NOT_OWNER", owner=OTHER), 0, planned=False)
    assert judged.findings == []
    for _ in range(5):
        call = judged.asked("CommitOffsets", HERE, pb.CommitOffsetsRequest(group="g"), 0)
        judged.failed(call, pb.Error(code="NOT_OWNER", owner=OTHER), 0, planned=False)
    assert judged.findings == [
        f"group g: went on asking {HERE} (CommitOffsets), though it named {OTHER} as the owner 5 times"
    ]
