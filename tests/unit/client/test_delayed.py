"""A producer's delayed records: what reaches the broker, under which sequences, by whose clock; and what
programs get back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.messages.broker_clock import OLD_S
from ledgermq.client.messages.handles import handle_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.delayed_broker import DelayedBroker
from tests.unit.client.hostile import ADDRESS
from tests.virtual_time import EPOCH_US, virtual_in, virtual_sources

SECOND_US = 1_000_000
MINUTE = timedelta(minutes=1)
SKEW_US = 3_600 * SECOND_US
"""How far the brokers' clock is ahead of the client's."""


@asynccontextmanager
async def delayed_broker() -> AsyncIterator[tuple[DelayedBroker, ledgermq.Client]]:
    broker = DelayedBroker()
    async with ledgermq.Client(
        broker, [ADDRESS], ClientSettings(timeout_s=5, attempt_timeout_s=2), virtual_sources(5)
    ) as client:
        yield broker, client
        for made in client._made:
            if isinstance(made, ledgermq.Producer):
                await made.abort()


with_a_broker = virtual_in(delayed_broker, "broker", "client")


def at(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def loop_us() -> int:
    return round(asyncio.get_running_loop().time() * SECOND_US)


@with_a_broker
async def test_a_batch_mixes_due_times(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer(linger_ms=10)
    due = at(EPOCH_US) + MINUTE
    sent = [
        producer.send("t", b"a", partition=0, delay=5),
        producer.send("t", b"b", key=b"k", partition=0, deliver_at=due),
        producer.send("t", b"c", partition=0, delay_level=2),
    ]
    await producer.flush()
    [block] = broker.blocks
    assert block.column("value") == [b"a", b"b", b"c"]
    dues = [EPOCH_US + 5 * SECOND_US, EPOCH_US + 60 * SECOND_US, EPOCH_US + 5 * SECOND_US]
    assert block.dues_us == dues
    assert (block.header.timestamp_min_us, block.header.timestamp_max_us) == (min(dues), max(dues))
    results = [await delivery for delivery in sent]
    assert [(found.offset, found.timestamp_us) for found in results] == [(None, moment) for moment in dues]
    assert results[1].timestamp == due


@with_a_broker
async def test_other_records_of_the_producer_take_the_usual_way(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer()
    plain, delayed = producer.send("t", b"now"), producer.send("t", b"later", delay=1)
    await producer.flush()
    [frame] = broker.produced
    assert [batch.record_count for batch in frame.header.batches] == [1]
    assert [block.column("value") for block in broker.blocks] == [[b"later"]]
    assert ((await plain).handle, (await plain).offset) == (None, 0)
    assert (await delayed).handle is not None


@with_a_broker
async def test_sequences_count_batches_and_each_partition_has_a_producer_id(
    broker: DelayedBroker, client: ledgermq.Client
) -> None:
    producer = client.producer()
    for _ in range(3):
        for partition in (0, 1):
            for value in (b"1", b"2"):
                producer.send("t", value, partition=partition, delay=9)
        await producer.flush()
    sessions = [[block.header.producer for block in broker.blocks if block.partition == p] for p in (0, 1)]
    assert [[session.sequence for session in found] for found in sessions] == [[0, 1, 2], [0, 1, 2]]
    ids = [{session.id for session in found} for found in sessions]
    assert [len(found) for found in ids] == [1, 1]
    assert ids[0] != ids[1]


@with_a_broker
async def test_a_lost_answer_repeats_the_batch_and_names_the_same_message(
    broker: DelayedBroker, client: ledgermq.Client
) -> None:
    producer = client.producer()
    await producer.send("t", b"before", partition=0, delay=60)
    broker.lost_answers = 1
    result = await producer.send("t", b"once", partition=0, delay=60)
    assert [block.column("value") for block in broker.blocks] == [[b"before"], [b"once"]]
    assert result.handle is not None
    assert await client.recall(result.handle) is ledgermq.RecallOutcome.RECALLED
    assert (broker.recalls[0].offset, broker.recalls[0].row) == (1, 0)


# -- clocks


@with_a_broker
async def test_a_wrong_clock_of_the_client_shifts_no_delay(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.now_us = EPOCH_US + SKEW_US
    producer = client.producer()
    fixed = at(EPOCH_US) + MINUTE
    first = [producer.send("t", b"v", partition=0, delay=5), producer.send("t", b"v", partition=0, deliver_at=fixed)]
    await producer.flush()
    assert broker.blocks[0].dues_us == [EPOCH_US + SKEW_US + 5 * SECOND_US, EPOCH_US + 60 * SECOND_US]
    assert (await first[0]).timestamp_us == broker.blocks[0].dues_us[0]
    await asyncio.sleep(100)
    await producer.send("t", b"v", partition=0, delay_level=1)
    assert broker.blocks[1].dues_us == [EPOCH_US + SKEW_US + loop_us() + SECOND_US]


@with_a_broker
async def test_rows_with_keys_are_corrected_too(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.now_us = EPOCH_US + SKEW_US
    producer = client.producer()
    producer.send("t", b"plain", partition=0, delay=1)
    producer.send("t", b"keyed", key=b"k", partition=0, delay=2)
    await producer.flush()
    assert broker.blocks[0].dues_us == [EPOCH_US + SKEW_US + seconds * SECOND_US for seconds in (1, 2)]


@with_a_broker
async def test_a_broker_without_a_time_leaves_this_machines_clock(
    broker: DelayedBroker, client: ledgermq.Client
) -> None:
    await client.producer().send("t", b"v", delay=5)
    assert broker.blocks[0].dues_us == [EPOCH_US + 5 * SECOND_US]


@with_a_broker
async def test_an_old_time_is_asked_for_again(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.now_us = EPOCH_US + SKEW_US
    producer = client.producer()
    await producer.send("t", b"v", partition=0, delay=0)
    asked = len(broker.opened)
    await asyncio.sleep(OLD_S - 1)
    await producer.send("t", b"v", partition=0, delay=0)
    assert len(broker.opened) == asked
    await asyncio.sleep(2)
    broker.now_us = EPOCH_US + 2 * SKEW_US
    await producer.send("t", b"v", partition=0, delay=0)
    await asyncio.sleep(1)
    await producer.send("t", b"v", partition=0, delay=0)
    assert [len(request.partitions) for request in broker.opened[asked:]] == [0]
    assert broker.blocks[-1].dues_us == [broker.now_us + SECOND_US]


@with_a_broker
async def test_a_time_ahead_is_refused_at_once_by_the_brokers_clock(
    broker: DelayedBroker, client: ledgermq.Client
) -> None:
    broker.now_us = EPOCH_US + SKEW_US
    producer = client.producer()
    far = at(EPOCH_US + SKEW_US) + timedelta(days=366)
    with pytest.raises(errors.InvalidRecord, match="366 days"):
        producer.send("t", b"v", deliver_at=far)  # no broker has reported its time yet
    await producer.send("t", b"v", delay=1)
    await producer.send("t", b"v", deliver_at=far)
    assert broker.blocks[1].dues_us == [EPOCH_US + SKEW_US + 366 * 86_400 * SECOND_US]


# -- the producer as a whole


@with_a_broker
async def test_records_of_send_many_may_have_delays(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer()
    records = [ledgermq.Record(b"a", partition=0, delay=3), b"b", ledgermq.Record(b"c", partition=0, delay_level=1)]
    deliveries = await producer.send_many("t", records)
    results = [await delivery for delivery in deliveries]
    assert [found.handle is None for found in results] == [False, True, False]
    assert broker.blocks[0].column("value") == [b"a", b"c"]


@with_a_broker
async def test_counts_and_flush_include_delayed_records(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer()
    producer.send("t", b"v" * 1000, delay=1)
    assert producer.unanswered_records == 1
    assert producer.buffered_bytes >= 1000
    await producer.flush()
    assert (producer.unanswered_records, producer.buffered_bytes, len(broker.blocks)) == (0, 0, 1)


@with_a_broker
async def test_one_buffer_bounds_both_kinds(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.silent = True
    producer = client.producer(buffer_bytes_max=3000, when_full="fail")
    producer.send("t", b"v" * 1500, delay=1)
    with pytest.raises(errors.ResourceExhausted):
        producer.send("t", b"v" * 1500)
    with pytest.raises(errors.ResourceExhausted):
        producer.send("t", b"v" * 1500, delay=1)


@with_a_broker
async def test_an_unseen_failure_is_raised_by_the_next_flush(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer()
    broker.refusals = [errors.InvalidRequest("this broker serves no timed messages")]
    producer.send("t", b"v", delay=1)
    with pytest.raises(errors.InvalidRequest, match="no timed messages"):
        await producer.flush()
    await producer.send("t", b"v", delay=1)  # the next session
    assert [block.header.producer.sequence for block in broker.blocks] == [0]


@with_a_broker
async def test_close_sends_delayed_records_and_abort_does_not(broker: DelayedBroker, client: ledgermq.Client) -> None:
    async with client.producer(linger_ms=1000) as producer:
        closed = producer.send("t", b"closed", delay=1)
    assert closed.done()
    assert closed.exception() is None
    broker.silent = True
    producer = client.producer()
    aborted = producer.send("t", b"aborted", delay=1)
    await asyncio.sleep(0.1)
    await producer.abort()
    assert isinstance(aborted.exception(), errors.Unavailable)
    assert [block.column("value") for block in broker.blocks] == [[b"closed"]]
    with pytest.raises(errors.Closed, match="closed"):
        producer.send("t", b"v", delay=1)


@with_a_broker
@pytest.mark.parametrize("settings", [{"acks": "received"}, {"idempotent": False}])
async def test_delayed_records_are_durable_and_stored_once_whatever_the_settings(
    broker: DelayedBroker, client: ledgermq.Client, settings: dict[str, Any]
) -> None:
    producer = client.producer(**settings)
    result = await producer.send("t", b"v", delay=1)
    assert result.handle is not None
    assert broker.blocks[0].header.producer.id


@with_a_broker
async def test_delayed_records_are_not_spilled_and_close_says_so(
    broker: DelayedBroker, client: ledgermq.Client, tmp_path: Path
) -> None:
    broker.silent = True
    spill = ledgermq.Spill(tmp_path / "spill.db")
    producer = client.producer(spill=spill, delivery_timeout_s=5)
    delayed = producer.send("t", b"v", delay=1)
    with pytest.raises(errors.LedgerMQError):
        await delayed
    producer.send("t", b"v", delay=1)
    with pytest.raises(errors.DeadlineExceeded):
        await producer.close(1)


# -- recall and list


@with_a_broker
async def test_a_recall_has_three_answers(broker: DelayedBroker, client: ledgermq.Client) -> None:
    producer = client.producer()
    sent = [producer.send("t", b"%d" % number, partition=1, delay=60) for number in range(3)]
    handles = [(await delivery).handle or "" for delivery in sent]
    broker.outcomes = {(1, 0, 1): pb.TOO_LATE, (1, 0, 2): pb.FORGOTTEN}
    assert [await client.recall(handle) for handle in handles] == ["recalled", "too late", "forgotten"]
    assert [(call.topic, call.topic_id, call.partition, call.due_us) for call in broker.recalls] == [
        ("t", 1, 1, broker.blocks[0].dues_us[0])
    ] * 3


@with_a_broker
async def test_a_recall_of_what_is_no_handle_asks_no_broker(broker: DelayedBroker, client: ledgermq.Client) -> None:
    with pytest.raises(errors.InvalidRequest, match="not the handle"):
        await client.recall("d1.nonsense")
    assert not broker.recalls


@with_a_broker
async def test_a_recall_whose_broker_is_silent_ends_in_time(broker: DelayedBroker, client: ledgermq.Client) -> None:
    handle = (await client.producer().send("t", b"v", delay=60)).handle
    broker.silent = True
    with pytest.raises(errors.Unavailable):
        await client.recall(handle or "")


@with_a_broker
async def test_an_answer_of_a_newer_broker_is_refused(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.outcomes = {(0, 0, 0): 99}  # type: ignore[dict-item]
    handle = (await client.producer().send("t", b"v", partition=0, delay=60)).handle
    with pytest.raises(errors.Unavailable, match="upgrade this client"):
        await client.recall(handle or "")


def waiting(due_s: int, topic: str = "t", **more: Any) -> pb.DelayedMessage:
    due_us = EPOCH_US + due_s * SECOND_US
    return pb.DelayedMessage(topic=topic, topic_id=1, offset=4, row=due_s, due_us=due_us, size_bytes=10, **more)


def summary(messages: int, **more: Any) -> pb.DelayedSummary:
    return pb.DelayedSummary(messages=messages, size_bytes=10 * messages, watermark_us=EPOCH_US, **more)


@with_a_broker
async def test_a_list_merges_what_waits_in_the_bundles(broker: DelayedBroker, client: ledgermq.Client) -> None:
    later = pb.DelayedRange(from_us=EPOCH_US, to_us=EPOCH_US + SECOND_US, messages=7, size_bytes=70)
    broker.lists = {
        1: pb.ListDelayedResponse(
            messages=[waiting(1, key=b"k"), waiting(4)],
            left=5,
            ranges=[later],
            summary=summary(14, next_due_us=EPOCH_US, now_us=EPOCH_US + 2, trouble="the store does not answer"),
        ),
        2: pb.ListDelayedResponse(messages=[waiting(2, topic=""), waiting(3, partition=1)]),
    }
    found = await client.list_delayed(messages_max=3)
    assert [(each.due, each.bundle, each.topic, each.partition) for each in found.messages] == [
        (at(EPOCH_US + SECOND_US), 1, "t", 0),
        (at(EPOCH_US + 2 * SECOND_US), 2, None, 0),
        (at(EPOCH_US + 3 * SECOND_US), 2, "t", 1),
    ]
    assert [each.key for each in found.messages] == [b"k", None, None]
    named = pb.RecallDelayedRequest(topic="t", topic_id=1, offset=4, row=1, due_us=EPOCH_US + SECOND_US)
    assert [each.handle for each in found.messages[:2]] == [handle_of(named), None]
    assert found.left == 6
    [bundle] = found.bundles
    assert (bundle.bundle, bundle.messages, bundle.size_bytes, bundle.trouble) == (
        1,
        14,
        140,
        "the store does not answer",
    )
    assert (bundle.next_due, bundle.delivered_to, bundle.now) == (at(EPOCH_US), at(EPOCH_US), at(EPOCH_US + 2))
    assert bundle.ranges == (ledgermq.DelayedRange(at(EPOCH_US), at(EPOCH_US + SECOND_US), 7, 70),)
    assert not found.unanswered
    assert [(call.bundle, call.topic, call.max_messages) for call in broker.listed] == [(1, "", 3), (2, "", 3)]


@with_a_broker
async def test_a_list_of_a_partition_asks_its_bundle_only(broker: DelayedBroker, client: ledgermq.Client) -> None:
    await client.list_delayed("t", 1)
    [call] = broker.listed
    assert (call.bundle, call.topic, call.topic_id, call.partition) == (2, "t", 1, 1)
    broker.listed.clear()
    await client.list_delayed("t")
    assert [(call.bundle, call.HasField("partition")) for call in broker.listed] == [(1, False), (2, False)]


@with_a_broker
async def test_a_list_names_bundles_that_do_not_answer(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.lists = {1: errors.Unavailable("the bundle moves"), 2: pb.ListDelayedResponse(messages=[waiting(1)])}
    found = await client.list_delayed()
    assert (len(found.messages), list(found.unanswered)) == (1, [1])
    broker.lists[2] = errors.Unavailable("the bundle moves")
    with pytest.raises(errors.Unavailable, match="the bundle moves"):
        await client.list_delayed()


@with_a_broker
async def test_a_wrong_choice_is_refused(broker: DelayedBroker, client: ledgermq.Client) -> None:
    with pytest.raises(errors.InvalidRequest, match="give the topic"):
        await client.list_delayed(partition=1)
    with pytest.raises(errors.UnknownPartition):
        await client.list_delayed("t", 2)
    with pytest.raises(errors.InvalidRequest, match="0 to 10000"):
        await client.list_delayed(messages_max=10_001)


@with_a_broker
async def test_a_time_that_is_none_is_the_nearest_one(broker: DelayedBroker, client: ledgermq.Client) -> None:
    broker.lists = {1: pb.ListDelayedResponse(summary=summary(1, next_due_us=2**62, now_us=-(2**62)))}
    [bundle] = (await client.list_delayed(messages_max=0)).bundles
    assert (bundle.next_due, bundle.now) == (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))
