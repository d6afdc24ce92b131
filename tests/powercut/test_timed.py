"""Timed messages of a broker on a disk whose power is cut at any step: after the restart each that was
acknowledged comes once, in the order of due times, and none that was recalled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.timer_calls import Sender, constants_of, listed, pass_time, recall, send, served
from tests.broker.transaction_calls import beginner
from tests.powercut.cutting import CUTS, check_cuts
from tests.powercut.recording import Recording, Step
from tests.stores.backends import seeded_sources
from tests.virtual_time import EPOCH_US, run_virtual, virtual_sources
from tests.waiting import until

BUNDLES = 2
HOUR_S, DAY_S = 3600, 86_400
AHEAD_S = 3 * HOUR_S
"""The store's clock jumps so far: ranges of two hours, of ten minutes and of minutes are turned at once."""
DUE_S = (0, 0.5, 200, 700, 1.5 * HOUR_S, 2.9 * HOUR_S, 30 * HOUR_S, 2.2 * DAY_S)
RECALLED = (1.4 * HOUR_S, 2.2 * DAY_S + 1)
TRANSACTIONAL = b"of a transaction"
AFTER_S = 2.5 * DAY_S
"""Then everything is due."""


def small(chunk_bytes: int) -> BrokerConstants:
    return constants_of(flush_after_ms=200, chunk_bytes=chunk_bytes, log_start_ms=300)


@dataclass(frozen=True)
class TopicMade:
    pass


@dataclass(frozen=True)
class Asked:
    """To store a message. `due_us`: by the store's clock."""

    value: bytes
    due_us: int


@dataclass(frozen=True)
class Acknowledged:
    value: bytes


@dataclass(frozen=True)
class RecallAsked:
    value: bytes


@dataclass(frozen=True)
class Recalled:
    value: bytes


@dataclass(frozen=True)
class Seen:
    """What a consumer has read so far."""

    values: tuple[bytes, ...]


class Life:
    """A producer whose messages are due at all distances, one transaction, recalls; then hours pass."""

    def __init__(self, cluster: Cluster, recording: Recording) -> None:
        self.cluster = cluster
        self.recording = recording
        # four minutes past midnight: then there is a range of each width
        self.begun_us = (seeded_sources().now_us() // DAY_US + 2) * DAY_US + 4 * MINUTE_US

    async def live(self) -> None:
        pass_time(self.cluster, self.begun_us)
        await self.cluster.create("t", 1)
        self.recording.note(TopicMade())
        sender = await Sender(self.cluster, "t", 0).open()
        sent = {}
        for after_s in (*DUE_S, *RECALLED):
            value = b"%.1f" % after_s
            sent[after_s] = await self.asked(value, after_s, sender.send((value, self.at_s(after_s))))
        await self.recall(sent, RECALLED[0])
        await self.in_a_transaction(20 * HOUR_S)
        await until(lambda: len(self.widths()) >= 4, 30)
        await self.recall(sent, RECALLED[1])
        await self.seen(2)
        pass_time(self.cluster, self.begun_us + AHEAD_S * 1_000_000)
        await self.asked(b"jump", AHEAD_S, sender.send((b"jump", self.at_s(AHEAD_S))))
        await self.seen(1 + sum(after_s <= AHEAD_S for after_s in DUE_S))
        last = await self.asked(b"last", AHEAD_S + 700, sender.send((b"last", self.at_s(AHEAD_S + 700))))
        assert last > max(sent.values())
        await asyncio.sleep(1)  # log starts move behind what was delivered

    def at_s(self, after_s: float) -> float:
        return at_s(self.begun_us, after_s)

    def widths(self) -> set[int]:
        found = served(self.cluster)
        return {each.to_us - each.from_us for part in found.values() for each in part.timers.ranges.values()}

    async def asked(self, value: bytes, after_s: float, sending: Any) -> int:
        self.recording.note(Asked(value, self.begun_us + round(after_s * 1e6)))
        offset: int = await sending
        self.recording.note(Acknowledged(value))
        return offset

    async def in_a_transaction(self, after_s: float) -> None:
        producer = await beginner(self.cluster, "orders")
        await producer.send_timed("t", 0, (TRANSACTIONAL, self.at_s(after_s)))
        await self.asked(TRANSACTIONAL, after_s, self.committed(producer))

    async def committed(self, producer: Any) -> int:
        assert await producer.commit() == pb.COMMITTED
        await producer.completed()
        return 0

    async def recall(self, sent: dict[float, int], after_s: float) -> None:
        value = b"%.1f" % after_s
        self.recording.note(RecallAsked(value))
        assert await recall(self.cluster, "t", 0, sent[after_s], 0, self.at_s(after_s)) == "RECALLED"
        self.recording.note(Recalled(value))

    async def seen(self, count: int) -> None:
        async def has_come() -> bool:
            return len(await self.cluster.read_all("t", 0)) >= count

        await until(has_come, 60, every_s=0.05)
        self.recording.note(Seen(tuple(await self.cluster.read_all("t", 0))))


def at_s(begun_us: int, after_s: float) -> float:
    """Return a time of the clock in the tests' calls, whose zero is `EPOCH_US`."""
    return (begun_us - EPOCH_US) / 1e6 + after_s


async def check(events: Sequence[Any], left: Path, begun_us: int) -> None:
    """Start a broker on what is left, in virtual time."""
    objects: dict[str, bytes] = {}
    async with FileStore(left / "root", seeded_sources(7)) as store:
        async for info in store.list(""):
            objects[info.key] = await store.get(info.key)
    await asyncio.to_thread(run_virtual, partial(restart, list(events), objects, begun_us))


async def restart(events: list[Any], objects: dict[str, bytes], begun_us: int) -> None:
    skew_us = begun_us - EPOCH_US + AHEAD_S * 1_000_000 + 60_000_000
    store = MemoryStore("", virtual_sources(1000, skew_us))
    for key, content in objects.items():
        await store.put(key, content)
    cluster = Cluster(store, constants=small(1 << 20), bundles=BUNDLES)
    try:
        await cluster.start("b:1", skew_us / 1e6)
        await cluster.settled()
        if any(isinstance(event, TopicMade) for event in events):
            await check_cluster(cluster, events, begun_us)
    finally:
        await cluster.close()


async def check_cluster(cluster: Cluster, events: list[Any], begun_us: int) -> None:
    of_kind = {
        kind: [e for e in events if isinstance(e, kind)] for kind in (Asked, Acknowledged, RecallAsked, Recalled)
    }
    dues = {event.value: event.due_us for event in of_kind[Asked]}
    acknowledged, asked_back, taken_back = (
        {event.value for event in of_kind[kind]} for kind in (Acknowledged, RecallAsked, Recalled)
    )
    seen = next((event.values for event in reversed(events) if isinstance(event, Seen)), ())
    before = await cluster.read_all("t", 0)
    assert tuple(before[: len(seen)]) == seen, f"{seen} were read before, there are {before}"
    pass_time(cluster, begun_us + round(AFTER_S * 1e6))
    offset = await send(cluster, "t", 0, (b"after", at_s(begun_us, AFTER_S)))
    assert offset >= len(acknowledged & {value for value in dues if value != TRANSACTIONAL})
    await asyncio.sleep(600)
    assert (await listed(cluster, 1)).summary.messages == 0
    *found, after = await cluster.read_all("t", 0)
    assert after == b"after"
    assert len(found) == len(set(found)), f"one came twice: {found}"
    assert set(found) <= dues.keys() - taken_back, f"{found}, though {taken_back} were recalled"
    missing = acknowledged - asked_back - set(found)
    assert not missing, f"{missing} were acknowledged, and did not come: {found}"
    assert found == sorted(found, key=lambda value: dues[value])


@pytest.mark.slow
async def test_a_power_cut_loses_no_timed_message_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    recording = Recording(top)
    with monkeypatch.context() as patch:
        recording.install(patch)
        async with (
            FileStore(top / "root", seeded_sources(1)) as store,
            cluster_of("a:1", store=store, constants=small(200), bundles=BUNDLES) as cluster,
        ):
            life = Life(cluster, recording)
            await life.live()
    log = recording.log
    assert sum(isinstance(event, Acknowledged) for event in log) == len(DUE_S) + len(RECALLED) + 3
    jumped = max(at for at, event in enumerate(log) if isinstance(event, Seen))
    first = next(at for at, event in enumerate(log) if isinstance(event, Asked))
    assert sum(isinstance(event, Step) for event in log[first:jumped]) > 100
    await check_cuts(log, top, tmp_path / "left", 1, CUTS, partial(check, begun_us=life.begun_us))
