"""Delete records on demand, and hold them legally, through brokers; in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ledgermq.client.admin.deletion import DeletedRecords
from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    LegalHold,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.archive_location import archive_urls_of, check_archive_beside, check_archive_url
from ledgermq_ledger.topics.facts import fact_of
from tests.broker.cluster import TIMESTAMP_US, Cluster, fetch_of, in_cluster, values_of
from tests.stores.late_checkpoint import LateCheckpoint
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.roots import Root

AT = datetime.fromtimestamp(TIMESTAMP_US / 1e6, UTC)


def client_of(cluster: Cluster) -> Client:
    return Client(
        InProcessConnector(cluster.network), list(cluster.brokers), ClientSettings(timeout_s=30), virtual_sources(91)
    )


async def starts(cluster: Cluster, topic: str, partition: int) -> tuple[int, int]:
    """Log start and deleted_to, as the newest checkpoint has them."""
    found = next(iter(cluster.brokers.values())).metadata.catalog.topics_by_name[topic]
    part = partition_of(await newest_checkpoint(cluster.store, found.bundles[partition]), found.id, partition)
    return part.log_start, part.deleted_to


async def error_at(cluster: Cluster, address: str, partition: int, offset: int) -> str:
    answer = await cluster.line(address).fetch_once(fetch_of("t", partition, offset))
    return answer.header.partitions[0].error.code


async def compact(cluster: Cluster) -> None:
    sources = virtual_sources(92)
    assert not (await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))).failures


async def first_comes_late(cluster: Cluster, address: str, is_it: Callable[[fmt.Checkpoint], bool]) -> LateCheckpoint:
    """The broker's first checkpoint that `is_it` wins a number that is free again, and is not the
    newest.
    """
    root = Root(cluster.store, virtual_sources(93), await read_cluster(cluster.store))
    late = LateCheckpoint(root, is_it)
    cluster.views[address].inner = late
    return late


@in_cluster("a:1", "b:1")
async def test_deleted_offsets_are_out_of_range_at_once_and_for_the_next_owner(cluster: Cluster) -> None:
    """In segments, not compacted."""
    await cluster.create("t", 2)
    for i in range(6):
        await cluster.produce("t", 0, b"%d" % i)
    await cluster.produce("t", 1, b"other")
    async with client_of(cluster) as client:
        assert await client.delete_records("t", 4, [0], dry_run=True) == {0: DeletedRecords(0, 4)}
        assert await starts(cluster, "t", 0) == (0, 0)
        found = await client.delete_records("t", 4, [0])
        assert (found, found[0].records) == ({0: DeletedRecords(0, 4)}, 4)
        owner = await cluster.owner_of("t", 0)
        assert await error_at(cluster, owner, 0, 3) == "OFFSET_OUT_OF_RANGE"
        assert values_of(await cluster.line(owner).fetch_once(fetch_of("t", 0, 4))) == [b"4", b"5"]
        assert await client.list_offsets("t", "earliest") == {0: 4, 1: 0}
        assert await starts(cluster, "t", 0) == (4, 4)
        await cluster.stop(owner, graceful=False)
        await cluster.settled()
        heir = await cluster.owner_of("t", 0)
        assert await error_at(cluster, heir, 0, 3) == "OFFSET_OUT_OF_RANGE"
        assert await client.delete_records("t", 2, [0]) == {0: DeletedRecords(4, 4)}, "a log start never goes back"
        await cluster.produce("t", 0, b"6")
        assert values_of(await cluster.line(heir).fetch_once(fetch_of("t", 0, 4))) == [b"4", b"5", b"6"]


@in_cluster("a:1")
async def test_before_a_time_the_end_and_each_partition_its_own(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    for partition in range(3):
        await cluster.produce("t", partition, b"a", b"b", b"c")
    async with client_of(cluster) as client:
        assert await client.delete_records("t", AT) == dict.fromkeys(range(3), DeletedRecords(0, 0))
        assert await client.delete_records("t", {0: 1, 1: 2}) == {0: DeletedRecords(0, 1), 1: DeletedRecords(0, 2)}
        assert await client.delete_records("t", AT.replace(year=AT.year + 1), [1]) == {1: DeletedRecords(2, 3)}
        assert await client.delete_records("t", "end") == {
            0: DeletedRecords(1, 3),
            1: DeletedRecords(3, 3),
            2: DeletedRecords(0, 3),
        }
        assert (
            await client.list_offsets("t", "earliest") == await client.list_offsets("t", "latest") == {0: 3, 1: 3, 2: 3}
        )


@in_cluster("a:1")
async def test_across_the_border_between_parquet_and_segments(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for i in range(4):
        await cluster.produce("t", 0, b"%d" % i)
    await compact(cluster)
    for i in range(4, 8):
        await cluster.produce("t", 0, b"%d" % i)
    async with client_of(cluster) as client:
        assert await client.delete_records("t", 6) == {0: DeletedRecords(0, 6)}
        line = cluster.line("a:1")
        assert values_of(await line.fetch_once(fetch_of("t", 0, 6))) == [b"6", b"7"]
        await compact(cluster)
        assert values_of(await line.fetch_once(fetch_of("t", 0, 6))) == [b"6", b"7"]
        assert await error_at(cluster, "a:1", 0, 5) == "OFFSET_OUT_OF_RANGE"


@in_cluster("a:1")
async def test_bad_requests_change_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.create("keyed", 1, cleanup_policy="compact")
    await cluster.produce("t", 0, b"a")
    async with client_of(cluster) as client:
        with pytest.raises(OffsetOutOfRange, match="above the end 1"):
            await client.delete_records("t", 2, [0])
        with pytest.raises(InvalidRequest, match="a different record in each"):
            await client.delete_records("t", 1)
        with pytest.raises(UnknownPartition):
            await client.delete_records("t", 1, [2])
        with pytest.raises(UnknownTopic):
            await client.delete_records("no", "end")
        with pytest.raises(InvalidRequest, match=r"cleanup\.policy"):
            await client.delete_records("keyed", "end")
        for befores in ({0: -1}, {0: "start"}, {}):
            with pytest.raises(InvalidRequest):
                await client.delete_records("t", befores)  # type: ignore[arg-type]
    line = cluster.line("a:1")
    for partitions in ([], [pb.RecordsToDelete(partition=0)], [pb.RecordsToDelete(partition=0, end=True)] * 2):
        with pytest.raises(InvalidRequest):
            await line.delete_records(pb.DeleteRecordsRequest(topic="t", partitions=partitions))
    request = pb.DeleteRecordsRequest(topic="__metadata", partitions=[pb.RecordsToDelete(partition=0, end=True)])
    assert (await line.delete_records(request)).results[0].error.code == "INVALID_REQUEST"
    assert await starts(cluster, "t", 0) == (0, 0)


@in_cluster("a:1", "b:1")
async def test_a_broker_that_was_fenced_does_not_answer(cluster: Cluster) -> None:
    """Its readers would not be bound by the answer."""
    await cluster.create("t", 1)
    for i in range(4):
        await cluster.produce("t", 0, b"%d" % i)
    zombie = await cluster.owner_of("t", 0)
    cluster.views[zombie].pause()
    heir = "b:1" if zombie == "a:1" else "a:1"
    cluster.network.stop_listening(zombie)
    cluster.brokers[heir].ownership.report_lost(cluster.brokers[zombie].broker_id, refused=True)
    bundle = cluster.brokers[heir].metadata.catalog.topics_by_name["t"].bundles[0]
    await until(lambda: bundle in cluster.brokers[heir].ownership.terms.opened)
    cluster.views[zombie].resume()
    request = pb.DeleteRecordsRequest(topic="t", partitions=[pb.RecordsToDelete(partition=0, offset=2)])
    told = (await cluster.brokers[zombie].service.delete_records(request)).results[0]
    assert told.error.code == "NOT_OWNER"


@in_cluster("a:1")
async def test_a_log_start_in_a_checkpoint_that_is_never_read_is_not_answered(cluster: Cluster) -> None:
    """It stood in a checkpoint under a number that was free again: newer ones did not have it, nor
    would a later owner.
    """
    await cluster.create("t", 1)
    for i in range(4):
        await cluster.produce("t", 0, b"%d" % i)
    late = await first_comes_late(
        cluster, "a:1", lambda checkpoint: any(part.log_start for part in checkpoint.partitions)
    )
    async with client_of(cluster) as client:
        assert await client.delete_records("t", 3) == {0: DeletedRecords(0, 3)}
    assert late.came_late
    assert await starts(cluster, "t", 0) == (3, 3)


@in_cluster("a:1")
async def test_a_hold_in_a_checkpoint_that_is_never_read_is_not_answered(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    late = await first_comes_late(cluster, "a:1", lambda checkpoint: any(fact.held for fact in checkpoint.topic_facts))
    async with client_of(cluster) as client:
        await client.alter_topic("t", settings={"legal.hold": True})
    assert late.came_late
    topic = cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"]
    fact = fact_of(await newest_checkpoint(cluster.store, topic.bundles[0]), topic.id)
    assert fact is not None
    assert fact.held


@in_cluster("a:1", "b:1")
async def test_nothing_of_a_held_topic_is_deleted(cluster: Cluster) -> None:
    await cluster.create("t", 3, retention_ms="1000")
    for i in range(4):
        await cluster.produce("t", 0, b"%d" % i)
    catalog = cluster.brokers["a:1"].metadata.catalog
    async with client_of(cluster) as client:
        await client.delete_records("t", 1, [0])
        await client.alter_topic("t", settings={"legal.hold": True})
        topic = catalog.topics_by_name["t"]
        for bundle in set(topic.bundles):
            fact = fact_of(await newest_checkpoint(cluster.store, bundle), topic.id)
            assert fact is not None
            assert fact.held
        for deletion in (
            client.delete_records("t", 2, [0]),
            client.delete_records("t", 2, [0], dry_run=True),
            client.delete_topic("t"),
        ):
            with pytest.raises(LegalHold, match="legal hold"):
                await deletion
        await compact(cluster)
        await compact(cluster)
        assert await starts(cluster, "t", 0) == (1, 1), "retention would have taken all of it"
        await client.alter_topic("t", unset=["legal.hold"])
        await compact(cluster)
        assert await starts(cluster, "t", 0) == (4, 1)
        assert await client.delete_records("t", "end", [0]) == {0: DeletedRecords(4, 4)}
        await client.delete_topic("t")


@in_cluster("a:1")
async def test_a_hold_is_answered_only_when_every_bundle_knows_it(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    broker = cluster.brokers["a:1"]
    compaction = broker.controller._compaction
    real, told = compaction.store, []

    class Deaf:
        """One bundle's checkpoints cannot be put."""

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        async def put_if_absent(self, key: str, buffers: object) -> None:
            if "ledgers/0002/checkpoints" in key:
                told.append(key)
                raise Unavailable("the store does not answer")
            await real.put_if_absent(key, buffers)  # type: ignore[arg-type]

    broker.controller._compaction = replace(compaction, store=Deaf())  # type: ignore[arg-type]
    line = cluster.line("a:1")
    with pytest.raises(Unavailable, match="bundle 2 did not confirm it"):
        await line.alter_topic(pb.AlterTopicRequest(name="t", set={"legal.hold": "true"}))
    assert told
    broker.controller._compaction = compaction
    await line.alter_topic(pb.AlterTopicRequest(name="t", set={"legal.hold": "true"}))
    topic = broker.metadata.catalog.topics_by_name["t"]
    assert all([fact_of(await newest_checkpoint(cluster.store, bundle), topic.id) for bundle in set(topic.bundles)])


ROOT_S3 = "s3://data/root?endpoint=https://minio.example"
LISTED = "s3://vault/old?endpoint=https://vault.example, file:///archives/mq"
ARCHIVES = [  # (root, what an operator lists, the archive, whether it is allowed)
    (ROOT_S3, "", "", True),
    (ROOT_S3, "", "s3://other/prefix?endpoint=https://minio.example", True),
    (ROOT_S3, "", "s3://other/prefix?endpoint=https://minio.example&sse=AES256", True),
    (ROOT_S3, "", "s3://other/prefix", False),
    (ROOT_S3, "", "s3://other/prefix?endpoint=http://127.0.0.1:19999", False),
    (ROOT_S3, "", "hdfs://namenode:8020/archive", False),
    ("s3://data/root", "", "s3://other/prefix", True),
    ("s3://data/root", "", "s3://other/prefix?endpoint=http://127.0.0.1:19999", False),
    ("hdfs://namenode:8020/mq", "", "hdfs://namenode:8020/archive", True),
    ("hdfs://namenode:8020/mq", "", "hdfs://elsewhere:8020/archive", False),
    ("file:///data/root", "", "file:///home/broker/.ssh", False),
    ("file:///data/root", LISTED, "file:///archives/mq", True),
    ("file:///data/root", LISTED, "file:///archives/mq/orders", True),
    ("file:///data/root", LISTED, "file:///archives/mq-of-others", False),
    ("file:///data/root", LISTED, "file:///archives", False),
    (ROOT_S3, LISTED, "s3://vault/old/orders?endpoint=https://vault.example", True),
    (ROOT_S3, LISTED, "s3://vault/old/orders", False),
    (ROOT_S3, LISTED, "s3://vault/older?endpoint=https://vault.example", False),
    (ROOT_S3, LISTED, "s3://vault/old?endpoint=https://thief.example", False),
]


@pytest.mark.parametrize(("root", "listed", "archive", "allowed"), ARCHIVES)
def test_brokers_take_their_credentials_only_where_an_operator_allows(
    root: str, listed: str, archive: str, allowed: bool
) -> None:
    urls = archive_urls_of(load_settings(None, archive_urls=listed).archive_urls)
    with nullcontext() if allowed else pytest.raises(InvalidConfig, match="archive_urls"):
        check_archive_beside(root, archive, urls)


@pytest.mark.parametrize("path", ["/archives/../root", "/archives/%2e%2e/root", "/archives/./x"])
def test_an_archive_is_not_named_by_a_detour(path: str) -> None:
    with pytest.raises(ValueError, match="without the parts"):
        check_archive_url(f"file://{path}")
    with pytest.raises(InvalidConfig, match="archive_urls"):
        load_settings(None, archive_urls=f"s3://bucket/ok,file://{path}")


@in_cluster("a:1")
async def test_an_archive_of_before_stays_and_a_list_is_read_while_a_broker_runs(cluster: Cluster) -> None:
    [broker] = cluster.brokers.values()
    async with client_of(cluster) as client:
        broker.apply(cluster.settings.model_copy(update={"archive_urls": "memory://vault, hdfs://n:8020/a"}))
        await client.create_topic("t", settings={"archive.url": "hdfs://n:8020/a/t"})
        broker.apply(cluster.settings)
        await client.alter_topic("t", settings={"retention.ms": "1000"})
        with pytest.raises(InvalidConfig, match="archive_urls"):
            await client.alter_topic("t", settings={"archive.url": "hdfs://n:8020/a/u"})


@in_cluster("a:1")
async def test_settings_of_retention_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    wrong = [
        {"delete.when": "61 * * * *"},
        {"delete.when": "0 0 31 2 *"},
        {"delete.when": "0 0 6 ? * 2"},
        {"delete.when": "sometimes"},
        {"delete.when.timezone": "Mars/Olympus"},
        {"delete.when.timezone": "../../etc/passwd"},
        {"delete.action": "shred"},
        {"archive.url": "ftp://somewhere"},
        {"archive.url": "s3://user:secret@bucket/prefix"},
        {"archive.url": "s3://b"},
        {"archive.url": "file:///tmp/archive"},
        {"archive.url": "s3://bucket/archive"},
        {"archive.url": "s3://bucket/archive?endpoint=http://127.0.0.1:9"},
        {"legal.hold": "perhaps"},
    ]
    async with client_of(cluster) as client:
        await client.create_topic("t")
        for settings in wrong:
            with pytest.raises(InvalidConfig, match=next(iter(settings))):
                await client.alter_topic("t", settings=settings)
            with pytest.raises(InvalidConfig, match=next(iter(settings))):
                await client.create_topic("u", settings=settings)
