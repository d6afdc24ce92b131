"""Transactions of a broker on a disk whose power is cut at any step: after the restart each is there
as a whole or not at all, once, and none is lost whose commit was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import TransactionUnknown
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.groups import ask, committed_offset
from tests.broker.transaction_calls import Producer, beginner, code_of, constants_of
from tests.powercut.cutting import CUTS, check_cuts
from tests.powercut.recording import Recording, Step
from tests.stores.backends import seeded_sources
from tests.virtual_time import run_virtual, virtual_sources
from tests.waiting import until

BUNDLES = 4
PARTITIONS = 3
COMMITS = 3
GROUP, SOURCE = "copiers", "in"
LATE = "late"
"""The topic of what is prepared, and of the half message."""
LATER_US = 10**12
"""The clock after the power cut is ahead of the one before."""


@dataclass(frozen=True)
class TopicsMade:
    pass


@dataclass(frozen=True)
class Asked:
    """A commit was asked for. `offset`: of the group in the source."""

    ref: pb.TransactionRef
    values: tuple[tuple[int, bytes], ...]
    offset: int


@dataclass(frozen=True)
class Acknowledged:
    asked: Asked


@dataclass(frozen=True)
class Prepared:
    """What is decided later. `acknowledged`: the answer was there too."""

    ref: pb.TransactionRef
    acknowledged: bool


class Life:
    """One process that copies with a transactional id: it commits, aborts, and commits again. Others
    leave a transaction open, one prepared, and a half message without its end.
    """

    def __init__(self, cluster: Cluster, recording: Recording) -> None:
        self.cluster = cluster
        self.recording = recording

    async def live(self) -> None:
        await self.cluster.create("t", PARTITIONS)
        await self.cluster.create(SOURCE, 1)
        await self.cluster.create(LATE, 1)
        await self.cluster.produce(SOURCE, 0, *(b"%d" % number for number in range(COMMITS)))
        self.recording.note(TopicsMade())
        left_open = Producer(self.cluster, "open")
        await left_open.init()
        left_open.begin()
        for partition in range(PARTITIONS):
            await left_open.send("t", partition, b"open")
        producer = Producer(self.cluster, "copy")
        await producer.init()
        for number in range(COMMITS):
            if number == 1:
                await self.prepare("prepared", kind=pb.TWO_PHASE)
                await self.prepare("half", kind=pb.HALF_MESSAGE, check_group="askers")
            await self.commit(producer, number)
            producer.begin()
            for partition in range(PARTITIONS):
                await producer.send("t", partition, b"aborted %d" % number)
            await producer.abort()
            await producer.completed()

    async def prepare(self, name: str, **kind: object) -> None:
        producer = await beginner(self.cluster, name, **kind)
        await producer.send(LATE, 0, name.encode())
        ref = pb.TransactionRef()
        ref.CopyFrom(producer.ref)
        self.recording.note(Prepared(ref, acknowledged=False))
        assert await producer.end(pb.PREPARED) == pb.PREPARED
        self.recording.note(Prepared(ref, acknowledged=True))

    async def commit(self, producer: Producer, number: int) -> None:
        producer.begin()
        values = []
        for partition in range(PARTITIONS):
            for turn in range(2):
                values.append((partition, b"%d-%d" % (number, turn)))
                await producer.send("t", *values[-1])
        assert await producer.stage_offset(GROUP, SOURCE, 0, number + 1) == ""
        ref = pb.TransactionRef()
        ref.CopyFrom(producer.ref)
        self.recording.note(asked := Asked(ref, tuple(values), number + 1))
        assert await producer.commit() == pb.COMMITTED
        self.recording.note(Acknowledged(asked))
        await producer.completed()


async def check(events: Sequence[Any], left: Path) -> None:
    """Start a broker on what is left, in virtual time."""
    objects: dict[str, bytes] = {}
    async with FileStore(left / "root", seeded_sources(7)) as store:
        async for info in store.list(""):
            objects[info.key] = await store.get(info.key)
    await asyncio.to_thread(run_virtual, partial(restart, list(events), objects))


async def restart(events: list[Any], objects: dict[str, bytes]) -> None:
    store = MemoryStore("", virtual_sources(1000, LATER_US))
    for key, content in objects.items():
        await store.put(key, content)
    cluster = Cluster(store, constants=constants_of(unchecked_ms_max=LATER_US), bundles=BUNDLES)
    try:
        await cluster.start("b:1", LATER_US / 1e6)
        await cluster.settled()
        if any(isinstance(event, TopicsMade) for event in events):
            await check_cluster(cluster, events)
    finally:
        await cluster.close()


async def check_cluster(cluster: Cluster, events: list[Any]) -> None:
    asked = [event for event in events if isinstance(event, Asked)]
    committed = [event.asked for event in events if isinstance(event, Acknowledged)]
    if len(asked) > len(committed) and await is_committed(cluster, asked[-1].ref):
        committed.append(asked[-1])
    expected = {
        partition: [value for one in committed for at, value in one.values if at == partition]
        for partition in range(PARTITIONS)
    }
    await until(partial(is_visible, cluster, expected), what=f"{len(committed)} transactions to be visible")
    await check_open(cluster)
    await check_prepared(cluster, events)
    producer = Producer(cluster, "copy")
    await producer.init()
    producer.begin()
    for partition in range(PARTITIONS):
        await producer.send("t", partition, b"after")
    assert await producer.commit() == pb.COMMITTED
    await producer.completed()
    found = {partition: await cluster.read_all("t", partition) for partition in range(PARTITIONS)}
    assert found == {partition: [*values, b"after"] for partition, values in expected.items()}
    await until(partial(is_settled, cluster), every_s=1)
    offset = await committed_offset(cluster, GROUP, SOURCE, 0)
    assert (offset or 0) == (committed[-1].offset if committed else 0)


async def is_settled(cluster: Cluster) -> bool:
    """Return whether no transaction has staged an offset of the group any longer."""
    return await code_of(lambda: committed_offset(cluster, GROUP, SOURCE, 0)) == ""


async def is_committed(cluster: Cluster, ref: pb.TransactionRef) -> bool:
    """Return what became of a commit that was not acknowledged; undecided, it is aborted now."""
    request = pb.TransactionOutcomeRequest(transactional_id=ref.transactional_id, epoch=ref.epoch, number=ref.number)
    return (await ask(cluster, lambda line: line.transaction_outcome(request))).state == pb.COMMITTED


async def is_visible(cluster: Cluster, expected: dict[int, list[bytes]]) -> bool:
    """Assert at every look that nothing else is there, and nothing twice."""
    found = {partition: await cluster.read_all("t", partition) for partition in expected}
    for partition, values in found.items():
        assert values == expected[partition][: len(values)], (partition, values, expected[partition])
    return found == expected


async def check_open(cluster: Cluster) -> None:
    """What was open is aborted, on demand: its process is gone."""
    request = pb.TransactionOutcomeRequest(transactional_id="open", epoch=1, number=1)
    with suppress(TransactionUnknown):  # its id was not stored
        assert (await ask(cluster, lambda line: line.transaction_outcome(request))).state == pb.ABORTED
        ref = pb.TransactionRef(transactional_id="open", epoch=1, number=1, producer_id=b"i" * 16)
        end = pb.EndTransactionRequest(transaction=ref, outcome=pb.COMMITTED)
        assert await code_of(lambda: ask(cluster, lambda line: line.end_transaction(end))) != ""


async def check_prepared(cluster: Cluster, events: list[Any]) -> None:
    """What was acknowledged is prepared; each becomes visible by its commit, whichever process calls it."""
    committed = []
    for asked in [event for event in events if isinstance(event, Prepared) and not event.acknowledged]:
        name = asked.ref.transactional_id
        state = await state_of(cluster, asked.ref)
        if state == pb.PREPARED:
            end = pb.EndTransactionRequest(transaction=asked.ref, outcome=pb.COMMITTED)
            assert (await ask(cluster, lambda line, end=end: line.end_transaction(end))).state == pb.COMMITTED
            committed.append(name.encode())
            await until(partial(holds, cluster, committed), what=f"{name} to be visible")
        else:
            assert Prepared(asked.ref, acknowledged=True) not in events, (name, state)
    assert await cluster.read_all(LATE, 0) == committed


async def state_of(cluster: Cluster, ref: pb.TransactionRef) -> int:
    request = pb.DescribeTransactionRequest(transactional_id=ref.transactional_id)
    try:
        return (await ask(cluster, lambda line: line.describe_transaction(request))).transaction.state
    except TransactionUnknown:
        return pb.UNDECIDED


async def holds(cluster: Cluster, values: list[bytes]) -> bool:
    return await cluster.read_all(LATE, 0) == values


async def test_a_power_cut_leaves_transactions_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    recording = Recording(top)
    recording.install(monkeypatch)
    constants = constants_of(chunk_bytes=1)  # each batch becomes visible in a segment of its own
    async with (
        FileStore(top / "root", seeded_sources(1)) as store,
        cluster_of("a:1", store=store, constants=constants, bundles=BUNDLES) as cluster,
    ):
        await Life(cluster, recording).live()
    acknowledged = [event for event in recording.log if isinstance(event, Acknowledged)]
    assert len(acknowledged) == COMMITS
    assert sum(isinstance(event, Prepared) and event.acknowledged for event in recording.log) == 2
    begun = next(at for at, event in enumerate(recording.log) if isinstance(event, Asked))
    assert sum(isinstance(event, Step) for event in recording.log[begun:]) > 100
    await check_cuts(recording.log, top, tmp_path / "left", 1, CUTS, check)
