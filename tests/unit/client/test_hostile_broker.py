"""A peer that answers garbage, nonsense or nothing to producers and about topics: typed errors come in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from tests.unit.client.hostile import HostileBroker, against_a_hostile_broker, now_s


def answers(*results: pb.ProduceResult) -> Callable[[ProduceFrame], pb.ProduceResponse]:
    return lambda frame: pb.ProduceResponse(results=results)


# -- silence


@against_a_hostile_broker
async def test_a_silent_cluster_is_unavailable_in_time(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.silent = True
    for call in (client.list_topics, client.describe_cluster, client.consumer("t").wait_ready):
        begun = now_s()
        with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
            await call()
        assert now_s() - begun < 31


@against_a_hostile_broker
async def test_a_record_never_sent_fails_at_the_delivery_timeout(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    broker.silent = True
    begun = now_s()
    with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
        await client.producer(delivery_timeout_s=8).send("t", b"v")
    assert now_s() - begun == pytest.approx(8, abs=0.5)


@against_a_hostile_broker
async def test_a_record_sent_without_answer_has_an_unknown_outcome(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    producer = client.producer(delivery_timeout_s=8, request_timeout_s=1)
    await producer.send("t", b"1", partition=0)
    broker.silent = True
    begun = now_s()
    with pytest.raises(errors.OutcomeUnknown):
        await producer.send("t", b"2", partition=0)
    assert now_s() - begun == pytest.approx(8, abs=1.5)


# -- nonsense to a producer


@against_a_hostile_broker
async def test_too_few_results_are_no_answer(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.on_produce = answers()
    with pytest.raises(errors.OutcomeUnknown):
        await client.producer(delivery_timeout_s=3).send("t", b"v")


@against_a_hostile_broker
async def test_an_error_of_a_newer_version_reaches_the_caller(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.on_produce = answers(pb.ProduceResult(error=pb.Error(code="FROM_THE_FUTURE", message="what is this")))
    with pytest.raises(errors.LedgerMQError, match="what is this"):
        await client.producer().send("t", b"v")


@against_a_hostile_broker
async def test_a_refused_batch_fails_alone(broker: HostileBroker, client: ledgermq.Client) -> None:
    def answer(frame: ProduceFrame) -> pb.ProduceResponse:
        bad = pb.ProduceResult(error=pb.Error(code="CORRUPT_FRAME", message="no"))
        return pb.ProduceResponse(
            results=[bad if b.partition == 0 else pb.ProduceResult(base_offset=7) for b in frame.header.batches]
        )

    broker.on_produce = answer
    producer = client.producer()
    first, second = producer.send("t", b"v", partition=0), producer.send("t", b"v", partition=1)
    with pytest.raises(errors.CorruptFrame):
        await first
    assert (await second).offset == 7


@against_a_hostile_broker
async def test_after_a_refusal_the_partition_gets_a_new_session(broker: HostileBroker, client: ledgermq.Client) -> None:
    refuse = [True]

    def answer(frame: ProduceFrame) -> pb.ProduceResponse:
        bad = pb.ProduceResult(error=pb.Error(code="MESSAGE_TOO_LARGE", message="no"))
        return pb.ProduceResponse(
            results=[bad if refuse.pop() else pb.ProduceResult(base_offset=0) for _ in frame.header.batches]
        )

    broker.on_produce = answer
    producer = client.producer()
    with pytest.raises(errors.MessageTooLarge):
        await producer.send("t", b"1", partition=0)
    refuse.append(False)
    await producer.send("t", b"2", partition=0)
    first, second = (frame.header.batches[0].producer for frame in broker.produced)
    assert first.id != second.id
    assert first.sequence == second.sequence == 0


@against_a_hostile_broker
async def test_a_forgotten_producer_with_nothing_in_doubt_goes_on(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    forgotten = [False, True, False]

    def answer(frame: ProduceFrame) -> pb.ProduceResponse:
        error = pb.ProduceResult(error=pb.Error(code="UNKNOWN_PRODUCER", message="who"))
        return pb.ProduceResponse(
            results=[error if forgotten.pop(0) else pb.ProduceResult(base_offset=len(broker.produced))]
        )

    broker.on_produce = answer
    producer = client.producer()
    await producer.send("t", b"1", partition=0)
    await producer.send("t", b"2", partition=0)
    sessions = [frame.header.batches[0].producer for frame in broker.produced]
    assert [session.sequence for session in sessions] == [0, 1, 0]
    assert sessions[0].id == sessions[1].id != sessions[2].id


@against_a_hostile_broker
async def test_a_forgotten_producer_with_a_batch_in_doubt_is_told(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    codes = ["UNAVAILABLE", "UNKNOWN_PRODUCER"]
    broker.on_produce = lambda frame: pb.ProduceResponse(
        results=[pb.ProduceResult(error=pb.Error(code=codes.pop(0), message="m"))]
    )
    with pytest.raises(errors.OutcomeUnknown):
        await client.producer().send("t", b"1", partition=0)
    assert codes == []


@against_a_hostile_broker
async def test_a_stream_that_breaks_is_opened_again_with_the_same_sequence(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    outcomes: list[pb.ProduceResponse | None] = [None, pb.ProduceResponse(results=[pb.ProduceResult(base_offset=3)])]
    broker.on_produce = lambda frame: outcomes.pop(0)
    assert (await client.producer().send("t", b"1", partition=0)).offset == 3
    first, second = broker.produced
    assert first.header == second.header
    assert b"".join(first.payload) == b"".join(second.payload)


@against_a_hostile_broker
async def test_brokers_that_point_at_each_other_end_in_time(broker: HostileBroker, client: ledgermq.Client) -> None:
    error = pb.Error(code="NOT_OWNER", message="go there", owner="nobody:1")
    broker.on_produce = answers(pb.ProduceResult(error=error))
    begun = now_s()
    with pytest.raises(errors.LedgerMQError):
        await client.producer(delivery_timeout_s=5).send("t", b"1", partition=0)
    assert now_s() - begun < 7
    assert len(broker.produced) < 60


@against_a_hostile_broker
async def test_overload_is_answered_with_patience(broker: HostileBroker, client: ledgermq.Client) -> None:
    full = pb.ProduceResponse(
        results=[pb.ProduceResult(error=pb.Error(code="RESOURCE_EXHAUSTED", message="full", retry_after_ms=3000))]
    )
    outcomes = [full, pb.ProduceResponse(results=[pb.ProduceResult(base_offset=0)])]
    broker.on_produce = lambda frame: outcomes.pop(0)
    begun = now_s()
    await client.producer().send("t", b"1", partition=0)
    assert now_s() - begun >= 3


@against_a_hostile_broker
async def test_a_topic_that_does_not_exist_is_told_soon(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.topic_error = pb.Error(code="UNKNOWN_TOPIC", message="no topic t")
    begun = now_s()
    with pytest.raises(errors.UnknownTopic):
        await client.producer().send("t", b"v")
    with pytest.raises(errors.UnknownTopic):
        await client.consumer("t").fetch()
    assert now_s() - begun < 5


@against_a_hostile_broker
async def test_a_creation_whose_answer_was_lost_is_recognized(broker: HostileBroker, client: ledgermq.Client) -> None:
    outcomes: list[Exception] = [errors.Unavailable("the line was lost"), errors.TopicExists("t exists")]

    async def create(request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        raise outcomes.pop(0)

    broker.create_topic = create  # type: ignore[method-assign]
    assert (await client.create_topic("t", 2)).topic_id == 1
    outcomes += [errors.Unavailable("the line was lost"), errors.TopicExists("t exists")]
    with pytest.raises(errors.TopicExists):
        await client.create_topic("t", 3)
    outcomes += [errors.TopicExists("t exists")]
    with pytest.raises(errors.TopicExists):
        await client.create_topic("t", 2)


@against_a_hostile_broker
async def test_a_deletion_asks_once_for_a_topic_that_is_being_deleted(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    broker.topic_error = pb.Error(code="TOPIC_BEING_DELETED", message="t is being deleted")
    begun = now_s()
    await client.delete_topic("t")
    assert now_s() - begun < 5


@against_a_hostile_broker
async def test_a_deletion_whose_answer_was_lost_is_recognized(broker: HostileBroker, client: ledgermq.Client) -> None:
    outcomes: list[Exception] = [errors.Unavailable("the line was lost"), errors.UnknownTopic("no t")]

    async def delete(request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        raise outcomes.pop(0)

    broker.delete_topic = delete  # type: ignore[method-assign]
    await client.delete_topic("t")
    outcomes += [errors.UnknownTopic("no t")]  # it was there a moment ago
    await client.delete_topic("t")
    broker.topic_error = pb.Error(code="UNKNOWN_TOPIC", message="no t")
    with pytest.raises(errors.UnknownTopic):
        await client.delete_topic("t")
