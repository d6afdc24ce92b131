"""Cuts of a cluster under load: what they promise, what is left of them, and who may take them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

import ledgermq
from ledgermq.errors import CutExists, InvalidRequest, LedgerMQError, Unavailable, UnknownCut
from ledgermq_broker.cluster import heartbeat
from ledgermq_broker.cuts.taking import Taking
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.reading import read_to_end

PARTITIONS = 4

T = TypeVar("T")


async def read_cut(cluster: Cluster, name: str, topic: str = "t") -> list[list[bytes]]:
    """The values of each partition of a topic at a cut, from the store alone."""
    at = await open_named(cluster.store, await read_cluster(cluster.store), name)
    found, read = at.catalog.topics_by_name[topic], []
    for partition, bundle in enumerate(found.bundles):
        ledger = FollowedLedger(LedgerRef(at.store, bundle, at.cluster, virtual_sources(9)), run_blocking=run_inline)
        await ledger.open()
        rows = await read_to_end(ledger.reader, PartitionId(found.id, partition))
        read.append([rows[offset] for offset in sorted(rows)])
    return read


async def nothing_left(cluster: Cluster) -> bool:
    left = [info.key async for info in cluster.store.list("") if info.key.startswith((names.HELD, names.CUTS))]
    pins = [pin for bundle in range(3) for pin in (await newest_checkpoint(cluster.store, bundle)).pins]
    return not left and not pins


@in_cluster("a:1", "b:1")
async def test_what_was_acknowledged_before_is_in_it_and_what_was_sent_after_is_not(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            for number in range(20):
                await producer.send("t", b"before", partition=number % PARTITIONS)
            taken = await client.cuts.take("c")
            for number in range(20):
                await producer.send("t", b"after", partition=number % PARTITIONS)
    assert taken.state == "taken"
    assert taken.until is not None
    assert await read_cut(cluster, "c") == [[b"before"] * 5] * PARTITIONS


@in_cluster("a:1", "b:1")
async def test_the_life_of_a_cut(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        await cluster.produce("t", 0, b"1", b"2")
        taken = await client.cuts.take("eod", keep_s=None)
        assert taken.until is None
        with pytest.raises(CutExists, match="ledgermq cut drop eod"):
            await client.cuts.take("eod")
        shown = await client.cuts.show("eod")
        assert [each.bundle for each in shown.bundles] == [0, 1, 2]
        assert [(each.name, each.state) for each in await client.cuts.list()] == [("eod", "taken")]
        parts = await client.cuts.files("eod", "t")
        assert [(part.start, part.end, part.missing) for part in parts] == [(0, 2, 2), (0, 0, 0)]
        kept = await client.cuts.keep("eod", 3600)
        assert kept.until is not None
        assert (await client.cuts.drop("eod")).state == "dropped"
        await until(lambda: nothing_left(cluster), 60)
        await until(lambda: no_cuts(client), 60)
        with pytest.raises(UnknownCut, match="ledgermq cut list"):
            await client.cuts.show("eod")
        again = await client.cuts.take("eod")
        assert again.id > taken.id


async def no_cuts(client: ledgermq.Client) -> bool:
    return not await client.cuts.list()


@in_cluster("a:1")
async def test_a_cut_goes_when_its_time_is_over(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.cuts.take("short", keep_s=30)
        await asyncio.sleep(20)
        assert [each.state for each in await client.cuts.list()] == ["taken"]
        await until(lambda: no_cuts(client), 600)
        assert await nothing_left(cluster)


@in_cluster("a:1")
async def test_bad_input_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for name in ("", "a b", "x" * 101, "a/b", "."):
            with pytest.raises(InvalidRequest, match="is no name of a cut"):
                await client.cuts.take(name)
        for keep_s in (0, -1, 10**12):
            with pytest.raises(InvalidRequest, match="a cut is kept for"):
                await client.cuts.take("c", keep_s=keep_s)
        for call in (client.cuts.show, client.cuts.drop, lambda name: client.cuts.keep(name, 5)):
            with pytest.raises(UnknownCut):
                await call("never")
        assert await client.cuts.list() == []
        await client.cuts.take("c")
        with pytest.raises(LedgerMQError, match="has no topic 'nothing'"):
            await client.cuts.files("c", "nothing")


@in_cluster("a:1")
async def test_a_broker_of_an_earlier_release_prevents_cuts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    old = heartbeat.Heartbeat("old", "old:1", 1, "s", release="0.1.0")
    controller = cluster.brokers["a:1"].controller
    async with cluster.client(timeout_s=2) as client:
        monkeypatch.setattr(controller, "_lacking", lambda feature: [old] if feature == heartbeat.PINS else [])
        with pytest.raises(Unavailable, match=r"cuts of the cluster need every broker, but broker old"):
            await client.cuts.take("c")
        assert await client.cuts.list() == []
        assert await nothing_left(cluster)


@in_cluster("a:1", "b:1")
async def test_no_partition_begins_to_move_while_a_cut_is_pending(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, refused = Taking._pin, []

    async with cluster.client(timeout_s=3) as client:
        topic = await client.create_topic("t", 2)

        async def pin(self: Taking, cut: int, bundles: list[int]) -> dict[int, int]:
            source = topic.partitions[0].bundle if hasattr(topic.partitions[0], "bundle") else 1
            controller = cluster.brokers[(await cluster.owner_of(keys.METADATA_TOPIC, 0))].controller
            with pytest.raises(Unavailable, match="is being taken at the moment") as caught:
                await controller.move_partition("t", 0, 3 - source, dry_run=False)
            refused.append(caught.value)
            return await original(self, cut, bundles)

        monkeypatch.setattr(Taking, "_pin", pin)
        await client.cuts.take("c")
    assert refused
