"""A broker that dies at any operation on the store while a cut is taken, kept or dropped leaves nothing that stays: the
call succeeds at the next controller, the cut is whole, and after it is dropped no pin and no object is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from tests.broker.cluster import Cluster, PausableStore, cluster_of
from tests.broker.test_cuts import SlowCluster, no_cuts, nothing_left, read_cut
from tests.virtual_time import run_virtual
from tests.waiting import until

T = TypeVar("T")


class DyingStore(PausableStore):
    """Stands still for ever at its operation number `left`, counted from when that is set."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.left = -1
        self.died = asyncio.Event()

    def _count(self) -> None:
        if self.left == 0:
            self.pause()
            self.died.set()
        self.left -= 1

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        self._count()
        return await super().run(operation, what, bytes_known, step)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self._count()
        async for info in super().list(prefix, start_after):
            yield info


class DyingCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = DyingStore(self.store)
        return view


async def take(client: ledgermq.Client) -> None:
    await client.cuts.take("c", keep_s=3600)


async def keep(client: ledgermq.Client) -> None:
    kept = await client.cuts.keep("c", 7200)
    assert kept.until is not None
    assert kept.taken is not None
    assert (kept.until - kept.taken).total_seconds() > 3600


async def drop(client: ledgermq.Client) -> None:
    await client.cuts.drop("c")
    await until(partial(no_cuts, client), 300)


CALLS = {"take": take, "keep": keep, "drop": drop}


async def crash_at(operation: int, what: str, *, of_controller: bool) -> bool:
    """Let the controller, or the other broker, die at its operation number `operation` from when the call begins.
    Return False if the call had ended before.
    """
    async with cluster_of("a:1", "b:1", kind=DyingCluster) as cluster, cluster.client(timeout_s=90) as client:
        await client.create_topic("t", 4)
        for partition in range(4):
            await cluster.produce("t", partition, b"before")
        if what != "take":
            await take(client)
        [controller] = [a for a, broker in cluster.brokers.items() if keys.METADATA_BUNDLE in broker.ownership.opened]
        address = controller if of_controller else "a:1" if controller == "b:1" else "b:1"
        dying = cluster.views[address]
        assert isinstance(dying, DyingStore)
        dying.left = operation
        call = asyncio.create_task(CALLS[what](client))
        died = asyncio.create_task(dying.died.wait())
        await asyncio.wait({call, died}, return_when=asyncio.FIRST_COMPLETED)
        if not died.done():
            died.cancel()
            await call
            return False
        await cluster.stop(address, graceful=False)
        await call
        if what != "drop":
            assert [each.state for each in await client.cuts.list()] == ["taken"]
            assert await read_cut(cluster, "c") == [[b"before"]] * 4
            await drop(client)
        assert await nothing_left(cluster)
        checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
        assert checked.worst in (None, Severity.NOTE, Severity.UNTIDY), checked.problems
        return True


def died_at(operation: int, what: str, *, of_controller: bool) -> bool:
    found: list[bool] = []

    async def run() -> None:
        found.append(await crash_at(operation, what, of_controller=of_controller))

    run_virtual(run)
    return found[0]


def walk(what: str, *, of_controller: bool) -> int:
    """Return at how many operations a broker died."""
    operation = 0
    while died_at(operation, what, of_controller=of_controller):
        operation += 1
    return operation


@pytest.mark.parametrize(
    ("what", "operation", "of_controller"),
    [("take", 1, True), ("take", 9, True), ("take", 4, False), ("keep", 1, True), ("drop", 1, True), ("drop", 6, True)],
)
def test_a_broker_that_dies_leaves_nothing_that_stays(what: str, operation: int, of_controller: bool) -> None:
    assert died_at(operation, what, of_controller=of_controller)


@pytest.mark.slow
@pytest.mark.parametrize("what", CALLS)
def test_a_controller_that_dies_at_any_operation(what: str) -> None:
    assert walk(what, of_controller=True) > {"take": 10, "keep": 1, "drop": 10}[what]


@pytest.mark.slow
def test_an_owner_that_dies_at_any_operation() -> None:
    assert walk("take", of_controller=False) > 5


@pytest.mark.parametrize("moment", range(12))
def test_a_call_that_is_cancelled_at_any_moment_leaves_no_pending_cut(moment: int) -> None:
    """Such as that of a client whose line breaks. Its record may be durable later, and then no call takes it."""

    async def body() -> None:
        async with cluster_of("a:1", kind=SlowCluster) as cluster, cluster.client() as client:
            await client.create_topic("t", 1)
            [broker] = cluster.brokers.values()
            await asyncio.sleep(10)  # the controller is at rest
            call = asyncio.create_task(broker.service.take_cut(pb.TakeCutRequest(name="c")))
            await asyncio.sleep(moment * 0.003)
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: no_cuts(client), 60)
            await client.cuts.take("c")

    run_virtual(body)
