"""Transactions between releases: a root of a release before them takes them, brokers without them are
named, and records of a later release are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from crc32c import crc32c

import ledgermq
from infra.ports import free_port
from ledgermq.errors import FormatNotSupported, InvalidRequest
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import METHODS, SERVICE
from ledgermq.sources import Sources
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as fmt
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_offsets.format import ledgermq_offsets_pb2 as offsets_fmt
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.upgrades.calls import Proxy, wait_settled
from tests.upgrades.delayed import XID, XID_FORMAT
from tests.upgrades.golden import VERSIONS, Expected, copy_root
from tests.upgrades.test_golden_roots import consume
from tests.upgrades.test_newer_formats import BUNDLE, NEWER, append_record, error_of, group_in, partition_in, produce
from tests.upgrades.transactions import (
    CHECKERS,
    LEFT,
    MOVERS,
    NEVER_UNRESOLVED,
    checked,
    commit_prepared,
    leave_transactions,
)
from tests.waiting import until
from tests.worlds.ledgers import ledger_of

BEFORE = "0.1.0"
"""A release without transactions."""
OF_TRANSACTIONS = {method.name for method in METHODS} - {
    "Produce",
    "ProduceOnce",
    "Fetch",
    "FetchOnce",
    "ListOffsets",
    "OpenProducer",
    "DescribeCluster",
    "DescribeTopics",
    "CreateTopic",
    "AlterTopic",
    "DeleteTopic",
    "DeleteRecords",
    "GroupHeartbeat",
    "CommitOffsets",
    "FetchCommitted",
    "ResetOffsets",
    "ListGroups",
    "DescribeGroup",
    "DeleteGroup",
}
PRODUCER = b"\x07" * 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_root(BEFORE, tmp_path)


# Older roots


async def test_a_root_of_before_takes_transactions(root: Path) -> None:
    expected = Expected.of(BEFORE).records
    for turn in range(2):
        async with ledgermq.connect(root.as_uri()) as client:
            async with client.transactions("orders") as transactions:
                async with transactions.begin() as transaction:
                    for partition in range(3):
                        transaction.send("flights", f"later {turn}", partition=partition)
                async with transactions.begin() as transaction:
                    transaction.send("flights", "never", partition=0)
                    await transaction.abort()
            outcome = await client.transactions.outcome("orders", epoch=turn + 1, number=2)
            assert outcome.state == "aborted"
            found = await consume(client)
    for partition in range(3):
        rows = found[f"flights/{partition}"]
        before = len(expected[f"flights/{partition}"])
        assert rows[:before] == expected[f"flights/{partition}"]
        assert [row[2] for row in rows[before:]] == ["later 0", "later 1"]


async def test_what_a_killed_broker_left_is_read_by_the_next(tmp_path: Path) -> None:
    """Open, committed, aborted and prepared: only what was committed is there, and what is prepared
    may be committed by its id.
    """
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(broker.address) as client:
            await client.create_topic("flights", 2)
            await leave_transactions(client, broker.address, "flights")
        brokers.kill(broker)
        broker = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(broker.address, timeout_s=60) as client:
            assert (await client.transactions.outcome("prepared")).state == "prepared"
            for name, state in (("committed", "committed"), ("aborted", "aborted"), ("open", "aborted")):
                assert (await client.transactions.outcome(name, epoch=1, number=1)).state == state
            assert [row[2] for row in (await consume(client))["flights/0"]] == LEFT
            async with RawClient(broker.address) as raw:
                await commit_prepared(raw.line(broker.address), "prepared")
            await until(partial(is_complete, client, "prepared"), every_s=0.1)
            assert [row[2] for row in (await consume(client))["flights/1"]] == [*LEFT, "prepared"]
        async with ledgermq.connect(broker.address) as client, client.transactions("committed") as transactions:
            assert transactions.epoch == 2


@pytest.mark.parametrize("of", [of for of in VERSIONS if Expected.of(of).transactions])
async def test_what_an_older_release_left_is_decided_and_completed(of: str, tmp_path: Path) -> None:
    """What is prepared is committed by its id, the half message by a producer that is asked, and what
    was open is gone, with the offset of a group. The ids go on.
    """
    root = copy_root(of, tmp_path)
    with BrokerProcesses(tmp_path, root.as_uri(), (*QUICK, NEVER_UNRESOLVED)) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(broker.address, timeout_s=60) as client:
            for name, state in Expected.of(of).transactions.items():
                assert (await client.transactions.outcome(name, epoch=1, number=1)).state == state, name
            assert (await moved(client)) == {0: LEFT, 1: LEFT}
            coordinator = (await client.transactions.describe("half")).partition
            async with RawClient(broker.address) as raw:
                line = raw.line(broker.address)
                await commit_prepared(line, "prepared")
                await line.end_transaction(await checked(line, coordinator, CHECKERS))
            if Expected.of(of).delayed:
                async with client.transactions.two_phase() as branch:
                    await branch.tpc_rollback(branch.xid(XID_FORMAT, XID))
            async with client.transactions("committed") as transactions:
                assert transactions.epoch == 2
                async with transactions.begin() as transaction:
                    transaction.send("moves", "later", partition=1)
            await until(partial(is_over, client), every_s=0.2)
            found = await moved(client)
            assert found == {0: [*LEFT, *found[0][1:]], 1: [*LEFT, "prepared", "later"]}
            assert sorted(found[0][1:]) == ["half", "prepared"]
            assert (await client.groups.describe(MOVERS)).committed == {}


async def moved(client: ledgermq.Client) -> dict[int, list[str | None]]:
    found = await consume(client)
    return {partition: [row[2] for row in found[f"moves/{partition}"]] for partition in range(2)}


async def is_over(client: ledgermq.Client) -> bool:
    found = await client.transactions.list()
    return not (found.transactions or found.staged or found.unanswered)


# Older brokers


class OldBroker(Proxy):
    """Passes calls on to a broker; those of `unknown` methods it does not have."""

    def __init__(self, upstream: grpc.aio.Channel, unknown: set[str]) -> None:
        super().__init__(upstream)
        self._unknown = {f"/{SERVICE}/{name}" for name in unknown}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return None if handler_call_details.method in self._unknown else super().service(handler_call_details)


@asynccontextmanager
async def old_broker(tmp_path: Path, root: Path, unknown: set[str]) -> AsyncIterator[str]:
    port, inner = free_port(), free_port()
    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        brokers.spawn("--advertised-address", f"127.0.0.1:{port}", port=inner)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{inner}", options=GRPC_OPTIONS) as channel:
            server = grpc.aio.server(options=GRPC_OPTIONS)
            server.add_generic_rpc_handlers((OldBroker(channel, unknown),))
            server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            try:
                await asyncio.to_thread(brokers.wait_ready, brokers.running[0])
                # A redirect leaves the outcome of an attempt unknown, and that would be the error of the client.
                await wait_settled(root, f"127.0.0.1:{inner}", f"127.0.0.1:{port}")
                yield f"127.0.0.1:{port}"
            finally:
                await server.stop(0)


@pytest.mark.slow
@pytest.mark.parametrize("unknown", [OF_TRANSACTIONS, {"Stage"}, {"EndTransaction"}], ids=["all", "Stage", "End"])
async def test_a_broker_without_transactions_is_named_and_nothing_is_visible(
    root: Path, tmp_path: Path, unknown: set[str]
) -> None:
    """Half a release stands for a bundle that goes to an older broker in the midst of a transaction."""
    async with old_broker(tmp_path, root, unknown) as address, ledgermq.connect(address, timeout_s=20) as client:
        with pytest.raises(InvalidRequest, match="release is older") as refused:
            async with client.transactions("orders") as transactions, transactions.begin() as transaction:
                transaction.send("flights", "never", partition=0)
        assert address in refused.value.message
        await produce(client, 0)
        values = [row[2] for row in (await consume(client))["flights/0"]]
        assert "never" not in values
        assert values[-1] == "new"


# Newer records


def id_record(place: int) -> tuple[bytes, bytes]:
    return b"id/later", fmt.Id(version=NEWER, producer_id=PRODUCER, epoch=1).SerializeToString()


def references_record(place: int) -> tuple[bytes, bytes]:
    return f"ref/{PRODUCER.hex()}/1/1/0".encode(), fmt.References(version=NEWER).SerializeToString()


def note_record(place: int) -> tuple[bytes, bytes]:
    return f"done/{PRODUCER.hex()}".encode(), fmt.Note(version=NEWER, finished=True).SerializeToString()


def unknown_record(place: int) -> tuple[bytes, bytes]:
    return b"branch/x", b"what a later version keeps"


async def with_transactions(root: Path) -> int:
    """Let a root have the topics of transactions; return the id of `__transactions`."""
    async with (
        ledgermq.connect(root.as_uri()) as client,
        client.transactions("first") as transactions,
        transactions.begin() as transaction,
    ):
        transaction.send("flights", "committed", partition=0)
    async with FileStore(root, Sources()) as store:
        ledger = ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000))
        return (await read_catalog(ledger)).topics_by_name[keys.TRANSACTIONS_TOPIC].id


@pytest.mark.parametrize("make", [id_record, references_record, note_record, unknown_record])
async def test_a_newer_record_of_transactions_refuses_those_of_its_bundle(
    root: Path, make: Callable[[int], tuple[bytes, bytes]]
) -> None:
    """Its records are still produced and read, and transactions elsewhere go on."""
    topic_id = await with_transactions(root)
    refused, healthy = await partition_in(root, BUNDLE), await partition_in(root, BUNDLE + 1)
    async with FileStore(root, Sources()) as store:
        await append_record(store, BUNDLE, topic_id, BUNDLE - 1, *make(BUNDLE))
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        await produce(client, refused)
        transactional_id = id_outside(BUNDLE - 1)
        async with client.transactions(transactional_id) as transactions:
            error = await error_of(commit(transactions, refused))
            assert isinstance(error, FormatNotSupported), repr(error)
            assert "__transactions" in error.message
            await commit(transactions, healthy)
        await until(partial(is_complete, client, transactional_id, 1, 2), every_s=0.1)
        error = await error_of(begin(client, id_inside(BUNDLE - 1)))
        assert isinstance(error, FormatNotSupported), repr(error)
        values = [row[2] for row in (await consume(client))[f"flights/{refused}"]]
        assert values[-1] == "new"
        assert "sent" not in values


async def commit(transactions: ledgermq.Transactions, partition: int) -> None:
    async with transactions.begin() as transaction:
        transaction.send("flights", "sent", partition=partition)


async def is_complete(client: ledgermq.Client, transactional_id: str, epoch: int = 0, number: int = 0) -> bool:
    return (await client.transactions.outcome(transactional_id, epoch=epoch, number=number)).complete


async def begin(client: ledgermq.Client, transactional_id: str) -> None:
    async with client.transactions(transactional_id):
        pass


def id_inside(coordinator: int) -> str:
    return next(name for name in map(str, range(1000)) if crc32c(name.encode()) % 3 == coordinator)


def id_outside(coordinator: int) -> str:
    return id_inside((coordinator + 1) % 3)


async def test_a_newer_record_of_pending_offsets_refuses_its_partition(root: Path) -> None:
    group = await group_in(root, BUNDLE)
    async with FileStore(root, Sources()) as store:
        ledger = ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000))
        topic = (await read_catalog(ledger)).topics_by_name[keys.OFFSETS_TOPIC]
        key = f"pending/{group}/{PRODUCER.hex()}/1/1".encode()
        value = offsets_fmt.Pending(version=NEWER, transactional_id="later").SerializeToString()
        await append_record(store, BUNDLE, topic.id, partition_of(group, topic.partitions), key, value)
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        error = await error_of(client.groups.describe(group))
        assert isinstance(error, FormatNotSupported), repr(error)
