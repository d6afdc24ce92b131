"""A root whose bundle 0 is stored twice, and what lies in it."""

from __future__ import annotations

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.plans import put_plan
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.root.copies import CopyingStore
from ledgermq_ledger.topics.catalog import read_catalog
from tests.stores.counting import CountingMeter
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

FOLDERS = {
    "segment": keys.segments(0),
    "checkpoint": keys.checkpoints(0),
    "snapshot": keys.snapshots(0),
    "plan": keys.compactions(0),
}


class Meter(CountingMeter):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def object_damaged(self, key: str, outcome: str) -> None:
        self.told.append((key, outcome))


def bare_bucket(sources: Sources) -> MemoryStore:
    """What lies there, seen without copies."""
    return MemoryStore("copies", sources)


async def copied_root(bucket: MemoryStore, sources: Sources) -> Root:
    """Checkpoint, snapshot, an open plan and a tail in bundle 0; topics in the snapshot and behind
    it.
    """
    root = await Root.open(CopyingStore(bucket), sources)
    await root.create_topic("early")
    await root.produce("early", (0, [b"0"]))
    await root.compact()
    await root.create_topic("late")
    history = await read_history(ledger_of(root.store, 0, cluster=root.cluster))
    plan = make_plan(history, await root.catalog(), everything=True, now_ms=sources.now_ms(), put_id=sources.new_id())
    assert plan is not None
    assert await put_plan(root.store, plan, sources)
    await root.create_topic("latest")
    return root


async def last(bucket: MemoryStore, folder: str) -> str:
    return [info.key async for info in bucket.list(folder) if keys.is_numbered(info.key, folder)][-1]


async def topics(root: Root, store: MemoryStore | CopyingStore) -> set[str]:
    return {
        topic.name
        for topic in (await read_catalog(ledger_of(store, 0, cluster=root.cluster))).living_topics()
        if not topic.internal
    }


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


async def damage(root: Root) -> list[str]:
    problems = (await check_root(root.store, root.cluster)).problems
    return [problem.object_key for problem in problems if problem.severity is Severity.DAMAGE]
