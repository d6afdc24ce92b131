"""What any released version has written is read, served and carried on by this one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import grpc.aio
import pyarrow.dataset
import pytest

import ledgermq
from ledgermq.errors import TopicBeingDeleted, UnknownTopic
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import METHODS
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.open_root import opened
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.upgrades.calls import base_offsets, errors_in, load, records_in, repeat, wait_settled
from tests.upgrades.golden import ROOTS, TIMED, VERSIONS, Expected, Row, contents, copy_root, row_of
from tests.upgrades.transactions import NEVER_UNRESOLVED
from tests.worlds.consumed import read_messages
from tests.worlds.source_readers import batch_reader

KINDS = (
    "cluster.json",
    "brokers/",
    "/segments/",
    "/checkpoints/",
    "/compactions/",
    "/files/",
    "/snapshots/",
    "parquet/topic=",
)
KINDS += ("keyed/", "/versions/")

pytestmark = pytest.mark.parametrize("of", VERSIONS)


@pytest.fixture
def root(of: str, tmp_path: Path) -> Path:
    return copy_root(of, tmp_path)


def rows_of(messages: Iterable[ledgermq.Message]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for m in messages:
        found.setdefault(f"{m.topic}/{m.partition}", []).append(
            row_of(m.offset, m.key, m.value, m.headers, m.tag, m.timestamp_us)
        )
    return found


def without(parts: dict[str, list[Row]], topic: str) -> dict[str, list[Row]]:
    return {name: rows for name, rows in parts.items() if not name.startswith(f"{topic}/")}


async def consume(client: ledgermq.Client) -> dict[str, list[Row]]:
    """Everything but the topic by key, what an old half message became once it was too old, and delayed
    messages.
    """
    topics = [topic.name for topic in await client.list_topics()]
    topics = [name for name in topics if name not in ("prices", TIMED) and not name.endswith(".unresolved")]
    return rows_of(await read_messages(client, topics))


def test_it_holds_every_kind_of_object(of: str) -> None:
    names = list(contents(ROOTS / of / "root"))
    assert [kind for kind in KINDS if not any(kind in name for name in names)] == []
    recorded = {call.method for call in load(ROOTS / of)}
    assert recorded, "and what clients said"
    assert recorded <= {method.name for method in METHODS}, "a method that clients use is never taken away"
    size = sum(len(data) for data in contents(ROOTS / of).values())
    assert size < 600_000, "git keeps it for ever"


async def test_fsck_finds_it_clean(root: Path, of: str) -> None:
    before = contents(root)
    async with opened(root.as_uri(), Sources()) as store:
        checked = await check_root(store, await read_cluster(store))
    assert checked.worst in (None, Severity.NOTE), checked.problems
    assert checked.records >= sum(len(rows) for rows in Expected.of(of).records.values())
    assert contents(root) == before


async def test_a_broker_serves_it_and_carries_it_on(root: Path, of: str) -> None:
    expected = Expected.of(of)
    async with ledgermq.connect(root.as_uri()) as client:
        assert await consume(client) == expected.records
        for group, offsets in expected.committed.items():
            described = await client.groups.describe(group)
            assert {
                str(part.partition): stored.stored.offset for part, stored in described.committed.items()
            } == offsets
        [tuned] = [topic for topic in await client.list_topics() if topic.name == "tuned"]
        assert tuned.settings["parquet.bloom.key"] == "true"
        async with client.producer() as producer:
            for name, rows in expected.records.items():
                topic, partition = name.split("/")
                assert (await producer.send(topic, "later", partition=int(partition))).offset == len(rows)
        for name in expected.removed:
            with pytest.raises((UnknownTopic, TopicBeingDeleted)):
                await client.describe_topic(name)
        await client.create_topic("gone", 1)


async def test_tables_show_the_latest_of_each_key_before_and_after_cleaning(root: Path, of: str) -> None:
    for topic, latest in Expected.of(of).latest.items():
        for _ in range(2):
            async with ledgermq.connect(root.as_uri()) as client, client.table(topic) as table:
                await table.wait_caught_up()
                found = {key.decode(): value.decode() for key, value in table.items()}
            assert found == latest
            async with opened(root.as_uri(), Sources()) as store:
                assert not (await compact_root(store, Sources(), LocalEngine(Sources()))).failures


async def test_groups_go_on_where_they_were(root: Path, of: str) -> None:
    expected = Expected.of(of)
    async with ledgermq.connect(root.as_uri()) as client:
        for group, offsets in expected.committed.items():
            rest = {
                f"flights/{p}": rows[offsets.get(p, 0) :] for p in "012" if (rows := expected.records[f"flights/{p}"])
            }
            messages: list[ledgermq.GroupMessage] = []
            static = {"readers": "static-1", "late": "static-2"}[group]
            async with client.consumer("flights", group=group, instance_id=static) as consumer:
                while len(messages) < sum(len(rows) for rows in rest.values()):
                    messages += await consumer.fetch(timeout=30)
            assert rows_of(messages) == rest


async def test_it_is_read_from_the_store_alone_before_and_after_compaction(root: Path, of: str) -> None:
    """The round that was left open is finished, a void segment stays unseen, and the removed topic
    goes.
    """
    expected = Expected.of(of)

    def by_source() -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for topic in {name.split("/")[0] for name in expected.records}:
            reader = batch_reader({"root": str(root), "topic": topic, "includeHeaders": "true"})
            rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
            add_rows(found, rows)
        return found

    assert await asyncio.to_thread(by_source) == expected.records
    async with opened(root.as_uri(), Sources()) as store:
        for _ in range(2):
            report = await compact_root(store, Sources(), LocalEngine(Sources()))
            assert not report.failures
        checked = await check_root(store, await read_cluster(store))
    assert checked.worst in (None, Severity.NOTE), checked.problems
    plain: dict[str, list[Row]] = {}
    add_rows(plain, pyarrow.dataset.dataset(root / "parquet", ignore_prefixes=["_", "."]).to_table().to_pylist())
    assert without(without(without(plain, "going"), "prices"), TIMED) == expected.records
    assert await asyncio.to_thread(by_source) == expected.records


def add_rows(found: dict[str, list[Row]], rows: list[dict[str, object]]) -> None:
    for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"])):
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]  # type: ignore[attr-defined]
        timestamp_us = round(row["timestamp"].timestamp() * 1e6)  # type: ignore[attr-defined]
        key, value, tag, offset = row["key"], row["value"], row["tag"], row["offset"]
        found.setdefault(f"{row['topic']}/{row['partition']}", []).append(
            row_of(offset, key, value, headers, tag, timestamp_us)
        )  # type: ignore[arg-type]


async def test_a_client_of_that_version_is_understood(root: Path, of: str, tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, root.as_uri(), (*QUICK, NEVER_UNRESOLVED)) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        await wait_settled(root, broker.address, broker.address)
        async with grpc.aio.insecure_channel(broker.address, options=GRPC_OPTIONS) as channel:
            given: dict[bytes, bytes] = {}
            for number, call in enumerate(load(ROOTS / of)):
                done = await repeat(call, channel, given)
                where = f"call {number}, {call.method}"
                assert errors_in(done) <= errors_in(call), where
                assert (base_offsets(done), records_in(done)) == (base_offsets(call), records_in(call)), where
                assert not re.search("Traceback", broker.text())
