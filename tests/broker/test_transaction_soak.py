"""Let transactional producers copy items to three bundles while brokers die, stand still and lose
calls; each item is visible once in each bundle, in order, or in none; in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ledgermq.errors import NotOwner, OutOfOrderSequence, TransactionError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle_calls import BundleCalls
from tests.broker.cluster import Cluster, PausableStore, cluster_of
from tests.broker.groups import committed_offset
from tests.broker.transaction_calls import Producer, constants_of, served
from tests.virtual_time import virtual
from tests.waiting import until

ITEMS = 40
OUTPUTS = 3
Step = Callable[[], Awaitable[object]]
SMALL = {"ask_after_ms": 2000, "timeout_ms": 5000, "chunk_bytes": 300, "carry_after_ms": 3000, "carry_slots": 10}


class LossyCalls:
    """Calls between brokers may be lost before or after they have had an effect."""

    def __init__(self, source: random.Random) -> None:
        self.rate = 0.2
        self._random = source
        self._real = BundleCalls.at

    def called(self) -> Callable[[BundleCalls, int, object], Awaitable[object]]:
        async def at(calls: BundleCalls, bundle: int, call: object) -> object:
            return await self.at(calls, bundle, call)

        return at

    async def at(self, calls: BundleCalls, bundle: int, call: object) -> object:
        if self._random.random() < self.rate:
            raise Unavailable("the call is lost")
        answer = await self._real(calls, bundle, call)  # type: ignore[arg-type]
        if self._random.random() < self.rate:
            raise Unavailable("the answer is lost")
        return answer


def slowly(source: random.Random) -> Callable[..., Awaitable[object]]:
    """A store whose calls take a while, so that brokers die in the middle of them."""

    async def run(view: PausableStore, operation: str, what: str, bytes_known: int, step: Step) -> object:
        await view._running.wait()
        await asyncio.sleep(source.uniform(0, 0.1))
        found = await step()
        await asyncio.sleep(source.uniform(0, 0.1))
        return found

    return run


async def copy_items(cluster: Cluster, source: random.Random) -> None:
    """Read-process-write of one input partition: goes on from the committed offset after any error."""
    while True:
        producer = Producer(cluster, "copier")
        try:
            await producer.init()
            at = await committed_offset(cluster, "g", "in", 0) or 0
            while at < ITEMS:
                at = await copy_some(producer, source, at)
            return
        except (TransactionError, OutOfOrderSequence, Unavailable, TimeoutError):  # a gap: what was before is aborted
            await asyncio.sleep(source.random())


async def copy_some(producer: Producer, source: random.Random, at: int) -> int:
    producer.begin()
    end = min(ITEMS, at + source.randrange(1, 5))
    for item in range(at, end):
        for partition in range(OUTPUTS):
            await asyncio.sleep(source.uniform(0, 0.4))
            await producer.send("out", partition, b"%d" % item)
    code = await producer.stage_offset("g", "in", 0, end)
    if code or source.random() < 0.2:
        await producer.abort()
        return at
    assert await producer.commit() == pb.COMMITTED
    if source.random() < 0.3:
        raise Unavailable("the process dies and begins again")
    return end


async def disturb(cluster: Cluster, source: random.Random) -> None:
    started = len(cluster.brokers)
    while True:
        await asyncio.sleep(source.uniform(0.5, 6))
        address = source.choice(list(cluster.brokers))
        kind = source.randrange(3)
        if kind == 0:
            cluster.views[address].pause()
            await asyncio.sleep(source.uniform(0.1, 4))
            cluster.views[address].resume()
        elif kind == 1:
            await cluster.stop(address, graceful=source.random() < 0.5)
            started += 1
            await cluster.start(f"n{started}:1")
        else:
            await cluster.produce("out", source.randrange(OUTPUTS), b"plain")


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_each_item_is_visible_once_in_each_bundle_whatever_dies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    lossy = LossyCalls(source)
    monkeypatch.setattr(BundleCalls, "at", lossy.called())
    async with cluster_of("a:1", "b:1", "c:1", constants=constants_of(**SMALL), bundles=4) as cluster:
        await cluster.create("in", 1)
        await cluster.create("out", OUTPUTS)
        await cluster.produce("in", 0, *(b"%d" % item for item in range(ITEMS)))
        monkeypatch.setattr(PausableStore, "run", slowly(source))
        troubles = asyncio.create_task(disturb(cluster, source))
        try:
            async with asyncio.timeout(3000):
                await copy_items(cluster, source)
        finally:
            troubles.cancel()
            await asyncio.wait([troubles])
        for view in cluster.views.values():
            view.resume()
        lossy.rate = 0.0
        await until(lambda: is_quiet(cluster), 200, every_s=1)
        for partition in range(OUTPUTS):
            values = [value for value in await read(cluster, partition) if value != b"plain"]
            assert values == [b"%d" % item for item in range(ITEMS)], f"partition {partition}"
        assert await committed_offset(cluster, "g", "in", 0) == ITEMS


async def read(cluster: Cluster, partition: int) -> list[bytes]:
    while True:
        try:
            return await cluster.read_all("out", partition)
        except (NotOwner, Unavailable):
            await asyncio.sleep(0.5)


def is_quiet(cluster: Cluster) -> bool:
    found = served(cluster)
    return set(found) == {1, 2, 3} and not any(
        one.participant.staged_batches or one.participant.unfinished() or one.coordinator.incomplete_count
        for one in found.values()
    )
