"""Check the client's two-phase commit against brokers, in virtual time: a prepared transaction waits for
its end; any process ends it by its name; programs get an operator's decision; answers are lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import Producer, served
from tests.virtual_time import virtual_sources
from tests.waiting import until

ADDRESSES = ("a:1", "b:1")
BUNDLES = {"bundles": 4}


class Line:
    """A connection that loses as many answers of each method as `lost` says."""

    def __init__(self, inner: Connection, lost: Counter[str]) -> None:
        self._inner = inner
        self._lost = lost

    def __getattr__(self, method: str) -> object:
        found = getattr(self._inner, method)
        if not self._lost[method]:
            return found

        async def lossy(request: object) -> object:
            answer = await found(request)
            if self._lost[method]:
                self._lost[method] -= 1
                raise errors.Unavailable("the line was lost")
            return answer

        return lossy


class Lines:
    def __init__(self, cluster: Cluster) -> None:
        self.lost: Counter[str] = Counter()
        self._connector = InProcessConnector(cluster.network)

    def connect(self, address: str) -> Connection:
        return Line(self._connector.connect(address), self.lost)  # type: ignore[return-value]


@asynccontextmanager
async def client_of(cluster: Cluster, lines: Lines | None = None) -> AsyncIterator[ledgermq.Client]:
    """A process with its own connections."""
    settings = ClientSettings(timeout_s=20, attempt_timeout_s=5)
    connector = lines or Lines(cluster)
    sources = virtual_sources(next(cluster.client_seeds))
    async with ledgermq.Client(connector, cluster.network.addresses(), settings, sources) as client:
        yield client


async def shown(cluster: Cluster, *values: bytes) -> None:
    """Wait until topic `t` has exactly these values."""

    async def read() -> list[bytes]:
        return sorted([value for partition in range(3) for value in await cluster.read_all("t", partition)])

    async def is_shown() -> bool:
        return await read() == sorted(values)

    await until(is_shown, 30, every_s=0.05)
    await asyncio.sleep(1)
    assert await read() == sorted(values)


async def begun(client: ledgermq.Client, name: str) -> ledgermq.TwoPhase:
    """A transaction with a record in each partition."""
    branch = client.transactions.two_phase()
    await branch.tpc_begin(branch.xid(1, name))
    for partition in range(3):
        branch.send("t", f"{name}/{partition}".encode(), partition=partition)
    return branch


def values(name: str) -> list[bytes]:
    return [f"{name}/{partition}".encode() for partition in range(3)]


async def decide(cluster: Cluster, name: str, resolution: pb.Resolution) -> None:
    """As an operator."""
    request = pb.ResolveTransactionRequest(transactional_id=f"xid.1.{name}.", resolution=resolution)
    await ask(cluster, lambda line: line.resolve_transaction(request))


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_what_is_prepared_is_invisible_has_no_time_out_and_is_committed(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as client:
        branch = await begun(client, "one")
        await branch.tpc_prepare()
        assert (await client.transactions.outcome(branch.xid(1, "one"))).state == "prepared"
        await asyncio.sleep(300)
        await shown(cluster)
        await branch.tpc_commit()
        await shown(cluster, *values("one"))
        outcome = await client.transactions.outcome(branch.xid(1, "one"))
        assert outcome == ("committed", True)
        assert await branch.tpc_recover() == []
        branch = await begun(client, "two")
        await branch.tpc_prepare()
        await branch.tpc_rollback()
        await shown(cluster, *values("one"))
        assert (await client.transactions.outcome("xid.1.two.")).state == "aborted"
        assert all(not found.participant.staged_bytes for found in served(cluster).values())


@pytest.mark.parametrize("commit", [True, False])
@in_cluster(*ADDRESSES, **BUNDLES)
async def test_any_process_finds_and_ends_what_another_one_prepared(cluster: Cluster, commit: bool) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as first:
        for name in ("one", "two", "ümlaut.3"):
            branch = await begun(first, name)
            await branch.tpc_prepare()
            await branch.close()  # what is prepared stays
        left = await begun(first, "left")
        await left.flush()
    await cluster.stop("a:1", graceful=False)
    async with client_of(cluster) as second, second.transactions.two_phase() as branch:
        found = await branch.tpc_recover()
        assert sorted(xid.gtrid for xid in found) == ["one", "two", "ümlaut.3"]
        for xid in found:
            for _ in range(2):  # the answer to the first call may have been lost
                await (branch.tpc_commit(xid) if commit else branch.tpc_rollback(xid))
        assert await branch.tpc_recover() == []
        with pytest.raises(errors.TransactionError):
            await (branch.tpc_rollback(found[0]) if commit else branch.tpc_commit(found[0]))
    expected = [value for name in ("one", "two", "ümlaut.3") for value in values(name)]
    await shown(cluster, *(expected if commit else []))


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_one_phase_is_the_commit_point_that_outcome_tells(cluster: Cluster) -> None:
    """The way beside a database that prepares first."""
    await cluster.create("t", 3)
    async with client_of(cluster) as client:
        branch = await begun(client, "one")
        await branch.tpc_commit()
        assert (await client.transactions.outcome(branch.xid(1, "one"))).committed
        await branch.tpc_begin(branch.xid(1, "empty"))
        await branch.tpc_commit()
        assert (await client.transactions.outcome(branch.xid(1, "empty"))).committed, "though nothing was sent"
        dead = await begun(client, "dead")
        await dead.flush()
        async with client_of(cluster) as other:
            assert (await other.transactions.outcome(branch.xid(1, "dead"))).state == "aborted"
        with pytest.raises(errors.TransactionAborted):
            await dead.tpc_commit()
        await shown(cluster, *values("one"))


@pytest.mark.parametrize("prepares", [True, False])
@in_cluster(*ADDRESSES, **BUNDLES)
async def test_of_two_programs_with_one_xid_the_second_is_refused(cluster: Cluster, prepares: bool) -> None:
    """Both would be told that they are committed, and the records of one would be dropped."""
    await cluster.create("t", 3)
    async with client_of(cluster) as client, client_of(cluster) as other:
        first, second = client.transactions.two_phase(), other.transactions.two_phase()
        await first.tpc_begin("transfer-2")
        first.send("t", b"of the first", partition=0)
        with pytest.raises(errors.InvalidRequest, match="another program has begun"):
            await second.tpc_begin("transfer-2")
        if prepares:
            await first.tpc_prepare()
            with pytest.raises(errors.InvalidRequest, match="was used"):
                await second.tpc_begin("transfer-2")
        await first.tpc_commit()
        await shown(cluster, b"of the first")
        await second.tpc_begin("transfer-3")  # it goes on with another id
        second.send("t", b"of the second", partition=1)
        await second.tpc_commit()
        await shown(cluster, b"of the first", b"of the second")


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_a_begin_whose_answers_were_lost_may_be_repeated_by_its_object(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    lines = Lines(cluster)
    async with client_of(cluster, lines) as client, client_of(cluster) as other:
        branch = client.transactions.two_phase()
        lines.lost.update(init_transactions=100)
        with pytest.raises(errors.LedgerMQError):
            await branch.tpc_begin("transfer-4")
        lines.lost.clear()
        with pytest.raises(errors.InvalidRequest):
            await other.transactions.two_phase().tpc_begin("transfer-4")
        await branch.tpc_begin("transfer-4")
        branch.send("t", b"once", partition=0)
        await branch.tpc_commit()
        await shown(cluster, b"once")


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_earlier_clients_with_one_xid_are_told_apart_by_what_they_count(cluster: Cluster) -> None:
    """They send no nonce, so that both get one identity; the second is told that it is fenced."""
    await cluster.create("t", 3)
    first, second = Producer(cluster, "transfer-5"), Producer(cluster, "transfer-5")
    for place, program in enumerate((first, second)):
        await program.init(kind=pb.TWO_PHASE)
        program.begin()
        await program.send("t", place, b"of %d" % place)
    await first.end(pb.PREPARED)
    assert await first.end(pb.PREPARED) == pb.PREPARED  # its answer may have been lost
    with pytest.raises(errors.TransactionFenced):
        await second.end(pb.PREPARED)
    await first.end(pb.COMMITTED)
    with pytest.raises(errors.TransactionFenced):
        await second.end(pb.COMMITTED)
    await shown(cluster, b"of 0")


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_an_xid_is_used_once_and_may_be_forgotten(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as client:
        branch = await begun(client, "one")
        with pytest.raises(errors.TransactionError, match="is open"):
            await branch.tpc_begin("another")
        with pytest.raises(errors.TransactionError, match="begun here"):
            await branch.tpc_commit(branch.xid(1, "one"))
        await branch.tpc_prepare()
        with pytest.raises(errors.TransactionError, match="it is prepared"):
            branch.send("t", b"late")
        with pytest.raises(errors.InvalidRequest):
            await client.transactions.forget(branch.xid(1, "one"))
        await branch.tpc_commit(branch.xid(1, "one"))
        with pytest.raises(errors.TransactionError, match="name the xid"):
            await branch.tpc_commit()
        with pytest.raises(errors.InvalidRequest, match="was used"):
            await branch.tpc_begin(branch.xid(1, "one"))
        await client.transactions.forget(branch.xid(1, "one"))
        with pytest.raises(errors.TransactionUnknown):
            await client.transactions.forget(branch.xid(1, "one"))
        with pytest.raises(errors.TransactionUnknown):
            await client.transactions.outcome(branch.xid(1, "one"))
        with pytest.raises(errors.TransactionUnknown):
            await branch.tpc_commit("never-begun")
        await branch.tpc_begin("begun")
        async with client_of(cluster) as other:
            with pytest.raises(errors.InvalidRequest, match="not prepared"):
                await other.transactions.two_phase().tpc_commit("begun")
            await other.transactions.two_phase().tpc_rollback("begun")
        with pytest.raises(errors.TransactionAborted):
            await branch.tpc_prepare()
        await branch.tpc_begin("next")
        await branch.close()
        with pytest.raises(errors.Closed, match="closed"):
            await branch.tpc_begin("more")
        assert (await client.transactions.outcome("next")).state == "aborted"


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_a_process_is_told_what_an_operator_decided(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as client:
        rolled_back, committed = await begun(client, "rolled-back"), await begun(client, "committed")
        await rolled_back.tpc_prepare()
        await committed.tpc_prepare()
        await decide(cluster, "rolled-back", pb.ABORT)
        await decide(cluster, "committed", pb.COMMIT)
        with pytest.raises(errors.TransactionAborted, match="by an operator's decision"):
            await rolled_back.tpc_commit()
        with pytest.raises(errors.TransactionError, match="committed by operator"):
            await committed.tpc_rollback()
        xid = committed.xid(1, "rolled-back")
        with pytest.raises(errors.TransactionAborted, match="by an operator's decision"):
            await committed.tpc_commit(xid)
        await committed.tpc_rollback(xid)  # what was decided anyway
        assert (await client.transactions.outcome(xid)).state == "aborted_by_operator"
        await client.transactions.forget(xid)
        with pytest.raises(errors.TransactionUnknown):
            await client.transactions.outcome(xid)
    await shown(cluster, *values("committed"))


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_lost_answers_of_the_coordinator(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    lines = Lines(cluster)
    async with client_of(cluster, lines) as client:
        lines.lost.update(init_transactions=1, end_transaction=1)
        branch = await begun(client, "one")
        await branch.tpc_prepare()
        lines.lost.update(end_transaction=1)
        await branch.tpc_commit()
        await shown(cluster, *values("one"))
        for name in ("again", "back"):
            branch = await begun(client, name)
            lines.lost.update(end_transaction=1000)
            with pytest.raises(errors.TransactionOutcomeUnknown, match="repeat the call"):
                await branch.tpc_prepare(timeout_s=3)
            with pytest.raises(errors.TransactionError, match="tpc_prepare again"):
                await branch.tpc_commit()
            with pytest.raises(errors.TransactionError, match="not open"):
                branch.send("t", b"late")
            lines.lost.clear()
            if name == "again":
                await branch.tpc_prepare()
                lines.lost.update(end_transaction=1000)
                with pytest.raises(errors.TransactionOutcomeUnknown, match="repeat the call"):
                    await branch.tpc_commit(timeout_s=3)
                lines.lost.clear()
                await branch.tpc_commit()
            else:
                await branch.tpc_rollback()
        await shown(cluster, *values("one"), *values("again"))
        branch = await begun(client, "unknown")
        lines.lost.update(end_transaction=1000)
        with pytest.raises(errors.TransactionOutcomeUnknown, match="outcome"):
            await branch.tpc_commit(timeout_s=3)
        lines.lost.clear()
        assert (await client.transactions.outcome("xid.1.unknown.")).committed, "in one phase, outcome tells"
        await branch.tpc_begin("next")  # the object goes on
        await branch.close()


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_a_record_that_fails_rolls_back(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as client:
        branch = await begun(client, "one")
        branch.send("no-such-topic", b"x")
        with pytest.raises(errors.UnknownTopic):
            await branch.tpc_prepare()
        assert (await client.transactions.outcome("xid.1.one.")).state == "aborted"
        await branch.tpc_begin("next")
        await branch.tpc_rollback()
    await shown(cluster)


@in_cluster(*ADDRESSES, **BUNDLES)
async def test_the_name_of_an_ordinary_transaction_tells_its_outcome(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    async with client_of(cluster) as client, client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        with pytest.raises(errors.TransactionError, match="when it is open"):
            _ = transaction.name
        async with transaction:
            transaction.send("t", b"a", partition=0)
            name = transaction.name
        assert name == f"billing-7:{transaction.epoch}:1"
        assert (await client.transactions.outcome(name)).committed
        async with transactions.begin() as empty:
            name = empty.name
        assert (await client.transactions.outcome(name)).committed, "though nothing was sent"
        async with transactions.begin() as last:
            last.send("t", b"b", partition=0)
            name = last.name
            async with client_of(cluster) as other:
                assert (await other.transactions.outcome(name)).state == "aborted"
            with pytest.raises(errors.TransactionAborted):
                await last.commit()
    await shown(cluster, b"a")
