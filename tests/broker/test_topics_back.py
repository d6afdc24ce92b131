"""Topics of a cut come back into a living cluster: each record once, however often and wherever it is broken off."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import ledgermq
from ledgermq import errors
from ledgermq_ledger.cluster import read_cluster
from ledgermq_tools.ledger.restore.command import only_topics
from ledgermq_tools.ledger.restore.topics import TopicBack, TopicsBack, bring_topics_back
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual_sources

PARTITIONS = 3
NEW = "t.restored"


class _Killed(BaseException):
    pass


async def back_of(cluster: Cluster, client: ledgermq.Client, pattern: str = "t") -> TopicsBack:
    only = only_topics(pattern)
    assert only is not None
    return TopicsBack(cluster.store, await read_cluster(cluster.store), "c", client, only, virtual_sources(77))


async def fill(client: ledgermq.Client, batches: int = 4, topic: str = "t", **settings: str) -> None:
    await client.create_topic(topic, PARTITIONS, {name.replace("_", "."): text for name, text in settings.items()})
    async with client.producer() as producer:
        for batch in range(batches):
            for partition in range(PARTITIONS):
                for row in range(5):
                    value, key, headers = b"%d/%d" % (batch, row), b"k%d" % row, {"h": b"%d" % batch}
                    producer.send(topic, value, key=key, headers=headers, partition=partition)
            await producer.flush()


async def rows(client: ledgermq.Client, topic: str) -> list[tuple[object, ...]]:
    """Every record without its offset, by partition and offset."""
    table = (await client.read_arrow(topic)).select(["partition", "key", "value", "headers", "timestamp"])
    return [tuple(str(value) for value in row.values()) for row in table.to_pylist()]


@pytest.mark.slow
@in_cluster("a:1", "b:1")
async def test_a_topic_comes_back_beside_the_one_that_goes_on(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, retention_ms="86400000", dedup_window_ms="60000")
        expected, settings = await rows(client, "t"), dict((await client.describe_topic("t")).settings)
        await client.cuts.take("c")
        async with client.producer() as producer:
            await producer.send("t", b"later")
        [done] = await bring_topics_back(await back_of(cluster, client))
        assert done == TopicBack("t", NEW, 60, 60)
        assert await rows(client, NEW) == expected
        found = await client.describe_topic(NEW)
        assert dict(found.settings) == settings, "it is not held any longer"
        assert len(await rows(client, "t")) == 61
        again = await bring_topics_back(await back_of(cluster, client))
        assert again == [replace(done, sent=0)]
        assert await rows(client, NEW) == expected


@pytest.mark.slow
@in_cluster("a:1", "b:1")
async def test_a_call_that_dies_after_any_batch_is_continued(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client)
        expected = await rows(client, "t")
        await client.cuts.take("c")
    died = 0
    for after in range(1, 100):
        async with cluster.client() as client:
            left = after

            def stored(records: int) -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise _Killed

            suffix = f".{after}"
            back = replace(await back_of(cluster, client), suffix=suffix)
            try:
                await bring_topics_back(replace(back, stored=stored))
            except _Killed:
                died += 1
                assert (await client.describe_topic("t" + suffix)).settings["legal.hold"] == "true"
        async with cluster.client() as client:
            [done] = await bring_topics_back(replace(await back_of(cluster, client), suffix=suffix))
            assert (done.records, await rows(client, "t" + suffix)) == (60, expected)
        if left > 0:
            break
    assert died >= PARTITIONS, "it died after each batch"


@in_cluster("a:1", "b:1")
async def test_two_calls_at_once_store_each_record_once(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as second:
        await fill(client)
        expected = await rows(client, "t")
        await client.cuts.take("c")
        calls = [bring_topics_back(await back_of(cluster, each)) for each in (client, second)]
        assert [done.records for [done] in await asyncio.gather(*calls)] == [60, 60]
        assert await rows(client, NEW) == expected


@pytest.mark.slow
@in_cluster("a:1", "b:1")
async def test_a_topic_that_was_deleted_comes_back_under_its_own_name(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, topic_delete_grace_ms="86400000")
        expected = await rows(client, "t")
        await client.cuts.take("c")
        back = replace(await back_of(cluster, client), suffix="")
        with pytest.raises(errors.TopicExists, match="does not come from this cut"):
            await bring_topics_back(back)
        await client.delete_topic("t")
        with pytest.raises(errors.TopicExists, match="undelete"):
            await bring_topics_back(back)
        await client.delete_topic("t", now=True)
        while True:
            try:
                [done] = await bring_topics_back(back)
                break
            except errors.TopicBeingDeleted:
                await asyncio.sleep(1)
        assert (done.name, await rows(client, "t")) == ("t", expected)


@in_cluster("a:1")
async def test_topics_of_others_are_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1)
        await client.cuts.take("c")
        await client.create_topic(NEW, PARTITIONS)
        with pytest.raises(errors.TopicExists, match="does not come from this cut"):
            await bring_topics_back(await back_of(cluster, client))
        await client.delete_topic(NEW, now=True)
        held = replace(await back_of(cluster, client), suffix=".held")
        with pytest.raises(_Killed):
            await bring_topics_back(replace(held, stored=_die))
        cut = replace(held, wanted="d")
        await client.cuts.take("d")
        with pytest.raises(errors.OutcomeUnknown, match="others have written to it"):
            await bring_topics_back(cut)
        with pytest.raises(errors.UnknownTopic, match="no topic that 'x' matches"):
            await bring_topics_back(await back_of(cluster, client, "x"))
        await client.cuts.drop("c")
        with pytest.raises(errors.UnknownCut):
            await bring_topics_back(held)


def _die(records: int) -> None:
    raise _Killed


@in_cluster("a:1")
async def test_a_topic_that_took_no_records_at_the_cut_comes_back(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1)
        await client.alter_topic("t", settings={"accept.publish": "false"})
        await client.cuts.take("c")
        [done] = await bring_topics_back(await back_of(cluster, client))
        assert done.records == 15
        assert dict((await client.describe_topic(NEW)).settings) == {"accept.publish": "false"}


@in_cluster("a:1")
async def test_a_keyed_topic_comes_back_keyed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 3, cleanup_policy="compact")
        expected = await rows(client, "t")
        await client.cuts.take("c")
        [done] = await bring_topics_back(await back_of(cluster, client))
        assert done.records == len(expected)
        assert await rows(client, NEW) == expected
        assert (await client.describe_topic(NEW)).settings["cleanup.policy"] == "compact"


@in_cluster("a:1")
async def test_times_of_brokers_and_records_without_keys_come_back(cluster: Cluster) -> None:
    """What the topic of the cut has, a producer could not send to it: its times, or no key in a topic keyed later."""
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        async with client.producer() as producer:
            for row in range(9):
                await producer.send("t", b"%d" % row, partition=row % PARTITIONS)
        await client.alter_topic("t", settings={"cleanup.policy": "compact"})
        expected = await rows(client, "t")
        settings = dict((await client.describe_topic("t")).settings)
        await client.cuts.take("c")
        [done] = await bring_topics_back(await back_of(cluster, client))
        assert done.records == 9
        assert await rows(client, NEW) == expected
        assert dict((await client.describe_topic(NEW)).settings) == settings


@in_cluster("a:1", "b:1")
async def test_what_others_write_meanwhile_is_told(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1)
        await client.cuts.take("c")
        back = await back_of(cluster, client)
        with pytest.raises(_Killed):
            await bring_topics_back(replace(back, stored=_die))
        async with client.producer() as producer:
            await producer.send(NEW, b"of another", partition=0)
        with pytest.raises((errors.InvalidRequest, errors.OutcomeUnknown), match="others have written to it"):
            await bring_topics_back(back)
        assert (await client.describe_topic(NEW)).settings["legal.hold"] == "true", "it is not called done"


@in_cluster("a:1", "b:1")
async def test_two_cuts_at_once_into_one_name_are_not_called_done(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as second:
        await fill(client)
        await client.cuts.take("c")
        async with client.producer() as producer:
            await producer.send("t", b"more", partition=0)
        await client.cuts.take("d")
        calls = [await back_of(cluster, client), replace(await back_of(cluster, second), wanted="d")]
        found = await asyncio.gather(*map(bring_topics_back, calls), return_exceptions=True)
        done = [each for each in found if not isinstance(each, BaseException)]
        assert all(isinstance(each, errors.LedgerMQError) for each in found if isinstance(each, BaseException))
        assert len(done) <= 1, "at most one of them has the name"
        for [one] in done:
            assert len(await rows(client, NEW)) == one.records


@in_cluster("a:1")
async def test_topics_without_records_are_repeated_and_wrong_names_found_first(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("empty", 1, {"retention.ms": "86400000"})
        await fill(client, 1)
        await client.cuts.take("c")
        back = await back_of(cluster, client, "t|empty")
        with pytest.raises(errors.InvalidTopicName):
            await bring_topics_back(replace(back, suffix="/new"))
        for sent in (15, 0):
            assert [(one.records, one.sent) for one in await bring_topics_back(back)] == [(0, 0), (15, sent)]
        await client.alter_topic(NEW, settings={"retention.ms": "86400000"})
        assert [one.sent for one in await bring_topics_back(back)] == [0, 0], "what others have set stays"
        assert (await client.describe_topic(NEW)).settings["retention.ms"] == "86400000"
