"""Queue groups that are reset and deleted while answers are lost and other programs change them too; virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import ledgermq
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.queues.partition import BundleQueues
from ledgermq_broker.queues.state.bundle_shares import FORGOTTEN_KEPT, RESETS_KEPT, BundleShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_ledger.log.log_record import LogRecord
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer
from tests.broker.queue_calls import GROUP, TOPIC, answer, fetch
from tests.waiting import until

KEY = ShareKey("workers", 7, 3)


async def begun(cluster: Cluster) -> None:
    """Let the group have finished 3 of 5 messages."""
    await cluster.create(TOPIC, 1)
    await cluster.produce(TOPIC, 0, b"0", b"1", b"2", b"3", b"4")
    assert await answer(cluster, await fetch(cluster, 3)) == []


async def starts(client: ledgermq.Client) -> Sequence[int]:
    return [each.start for found in await client.queues.list() for each in found.partitions]


@in_cluster("a:1", "b:1")
async def test_a_reset_whose_answer_was_lost_does_not_undo_a_later_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(cluster)
    async with cluster.client() as one, cluster.client() as other:

        async def later() -> None:
            await other.queues.reset(GROUP, TOPIC, 4)
            assert [message.offset for message in await fetch(cluster, 1)] == [4]

        lose_the_answer(monkeypatch, BundleQueues, "reset", stored=True, then=later)
        await one.queues.reset(GROUP, TOPIC, 0)
        [group] = await other.queues.list()
        assert ([each.start for each in group.partitions], group.leased) == ([4], 1)
        await one.queues.reset(GROUP, TOPIC, 0)
        assert await starts(other) == [0]


@in_cluster("a:1", "b:1")
async def test_a_deletion_whose_answer_was_lost_forgets_no_group_that_has_begun_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(cluster)
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(
            monkeypatch, BundleQueues, "reset", stored=True, then=lambda: other.queues.reset(GROUP, TOPIC, 2)
        )
        await one.queues.delete(GROUP, TOPIC)
        assert await starts(other) == [2]
        await one.queues.delete(GROUP, TOPIC)
        assert await starts(other) == []


@pytest.mark.parametrize("to", [0, None])
@in_cluster("a:1", "b:1")
async def test_what_began_at_the_next_owner_is_not_meant(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, to: int | None
) -> None:
    """The former owner had the nonces of deletions in its memory."""
    await begun(cluster)
    async with cluster.client() as one, cluster.client() as other:
        [bundle] = {each.bundle for each in (await other.describe_topic(TOPIC)).partitions}

        async def begins_anew() -> None:
            if to is not None:
                await other.queues.delete(GROUP, TOPIC)
            [former] = [a for a, broker in cluster.brokers.items() if bundle in broker.ownership.opened]
            [heir] = cluster.brokers.keys() - {former}
            await cluster.stop(former)
            await until(lambda: bundle in cluster.brokers[heir].ownership.opened, 60)
            await other.queues.reset(GROUP, TOPIC, 2)
            assert [message.offset for message in await fetch(cluster, 1)] == [2]

        lose_the_answer(monkeypatch, BundleQueues, "reset", stored=True, then=begins_anew)
        if to is None:
            await one.queues.delete(GROUP, TOPIC)
        else:
            await one.queues.reset(GROUP, TOPIC, to)
        [group] = await other.queues.list()
        assert ([each.start for each in group.partitions], group.leased) == ([2], 1)


@in_cluster("a:1", "b:1")
async def test_a_reset_whose_answer_was_lost_begins_no_group_that_was_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(cluster)
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(monkeypatch, BundleQueues, "reset", stored=True, then=lambda: other.queues.delete(GROUP, TOPIC))
        await one.queues.reset(GROUP, TOPIC, 0)
        assert await starts(other) == []


@pytest.mark.parametrize("to", [0, None])
@in_cluster("a:1", "b:1")
async def test_a_reset_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, to: int | None
) -> None:
    await begun(cluster)
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(
            monkeypatch, BundleQueues, "reset", stored=False, then=lambda: other.queues.reset(GROUP, TOPIC, 4)
        )
        if to is None:
            await one.queues.delete(GROUP, TOPIC)
        else:
            await one.queues.reset(GROUP, TOPIC, to)
        assert await starts(other) == ([] if to is None else [to])


def value_of(record: LogRecord) -> bytes | None:
    return None if record.value is None else bytes(record.value)


def test_the_next_owner_knows_resets_and_deletions_before_the_begin() -> None:
    """Also after more messages were finished, which writes the start again."""
    shares = BundleShares(ShareLimits())
    log: dict[bytes, bytes | None] = {}
    for decision in (
        shares.begin(KEY, 0),
        shares.reset(KEY, 5, b"reset"),
        shares.forget(KEY, b"deletion"),
        shares.begin(KEY, 7),
    ):
        log |= {record.key: value_of(record) for record in decision.records}
    after = BundleShares(ShareLimits())
    for key, value in log.items():
        after.apply(key, value)
    after.loaded()
    assert not after.reset(KEY, 0, b"reset").records
    assert not after.forget(KEY, b"deletion").records
    assert after.partitions[KEY].start == 7
    after.partitions[KEY].log_starts_at(1000)
    for record in after.expire(0.0).records:
        after.apply(record.key, value_of(record))
    assert not after.reset(KEY, 0, b"reset").records
    assert after.reset(KEY, 0, b"another").records


def test_what_is_remembered_has_a_bound() -> None:
    shares = BundleShares(ShareLimits())
    for number in range(RESETS_KEPT + 1):
        assert shares.reset(KEY, 0, str(number).encode()).records
    assert not shares.reset(KEY, 0, b"1").records
    assert shares.reset(KEY, 0, b"0").records
    for number in range(FORGOTTEN_KEPT + 1):
        shares.forget(ShareKey("workers", 8, number), b"deletion")
    assert len(shares._forgotten) == FORGOTTEN_KEPT


@in_cluster("a:1")
async def test_a_nonce_has_a_bound_and_each_partition_is_named_once(cluster: Cluster) -> None:
    reset = pb.ShareReset(topic=TOPIC, offset=0)
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").reset_shares(pb.ResetSharesRequest(group=GROUP, resets=[reset], nonce=bytes(17)))
    with pytest.raises(InvalidRequest, match="names each partition once"):
        await cluster.line("a:1").reset_shares(pb.ResetSharesRequest(group=GROUP, resets=[reset, reset], nonce=b"n"))
