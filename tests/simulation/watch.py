"""The one store of a simulated cluster, which forgets nothing: every object that was ever created,
and what it may not do.

`ledger_log` folds what was *first* created in each slot into the truth about every partition, by
the few lines of `stored_segments`: a segment is valid if it links to the last valid one, and either opens a higher
epoch or belongs to the current term. Deleting anything else than what a finished plan may name
(design L6) is noted at once as a violation.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import CHECKSUM, GROWN_VERSION, checksum_of
from ledgermq_ledger.delta.names import FOLDER, LAST_CHECKPOINT
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import KeyedName, ParquetName, PartitionId, parse_parquet
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint
from ledgermq_ledger.log.chains.plans import decode_plan
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import Buffer, ObjectInfo
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.sinks import decode_decision
from tests.judges.violation import Violation
from tests.simulation.stored_segments import Fold, StoredSegment

parquet_name = lru_cache(maxsize=10_000)(parse_parquet)
"""The same keys are looked at after every change."""

_NUMBERED = re.compile(r"ledgers/(\d+)/(segments|checkpoints)/(\d+)\Z")


TABLE_LOG = "/" + FOLDER
PLACE = "https://simulation"
"""Objects are shared by URLs below it."""


class WatchedStore(MemoryStore):
    def __init__(self, sources: Sources) -> None:
        super().__init__("simulation", sources)
        self.violations: list[Violation] = []
        self.first: dict[str, bytes] = {}
        self.moments: dict[str, int] = {}
        """The place of each among all that were ever created."""
        self.first_us: dict[str, int] = {}
        """When each was created first, by the store's clock."""
        self.ever: defaultdict[str, set[bytes]] = defaultdict(set)
        """All that was ever created at the key of an original of what is stored twice."""
        self.created_again: set[str] = set()
        self.segments: defaultdict[int, dict[int, tuple[fmt.SegmentIndex, bytes]]] = defaultdict(dict)
        self.on_metadata: Callable[[StoredSegment], None] = lambda segment: None
        """Told of every segment of bundle 0 when it is put, whether it will count or not."""
        self.on_segment: Callable[[int, fmt.SegmentIndex], None] = lambda bundle, index: None
        """Told of every segment when it is put: its bundle, and what its index says."""
        self._newest: dict[int, fmt.Checkpoint] = {}
        self._folds: dict[int, Fold] = defaultdict(Fold)
        self._histories: defaultdict[int, list[StoredSegment]] = defaultdict(list)
        self.claims = 0
        """Claims that were put, whether they opened a term or not."""
        self.on_parquet: Callable[[ParquetName], None] = lambda name: None
        """Told of every Parquet file that came or went, once it has."""
        self.on_checkpoint: Callable[[fmt.Checkpoint], None] = lambda checkpoint: None
        """Told of every checkpoint that became the newest."""
        self.on_keyed: Callable[[KeyedName], None] = lambda name: None
        """Told of every object of a keyed partition that came or went, once it has."""
        self.on_table: Callable[[str], None] = lambda key: None
        """Told of every object of a Delta log that came or went, once it has, and of each new hint in one."""
        self.on_merged: Callable[[str], None] = lambda key: None
        """Told of every merged file, and every list of them, that came or went, once it has."""
        self._until_gone: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self._until_commits: list[tuple[int, asyncio.Future[None]]] = []
        self.commits = 0
        """Checkpoints that became the newest, of all bundles."""

    def when_gone(self, *keys: str) -> asyncio.Future[None]:
        """Done once an object that was at one of `keys` is deleted, from now on."""
        gone = asyncio.get_running_loop().create_future()
        for key in keys:
            self._until_gone[key].append(gone)
        return gone

    def after_commits(self, count: int) -> asyncio.Future[None]:
        """Done once `count` more checkpoints have been put, of whatever bundle."""
        passed = asyncio.get_running_loop().create_future()
        self._until_commits.append((self.commits + count, passed))
        return passed

    def _note_commit(self) -> None:
        self.commits += 1
        for number, passed in self._until_commits:
            if number <= self.commits and not passed.done():
                passed.set_result(None)
        self._until_commits = [(number, passed) for number, passed in self._until_commits if not passed.done()]

    def _create(self, key: str, buffers: Sequence[Buffer]) -> None:
        super()._create(key, buffers)
        data = self._stored(key).data
        self._judge_copy(key, data)
        if key in self.first:
            self.created_again.add(key)
            if parquet_name(key) is not None:
                self.violations.append(Violation("deleted file came back", key))
        else:
            self.moments[key] = len(self.first)
            self.first[key], self.first_us[key] = data, self.now_us()
            self._note(key, data)
        self._tell_of_parquet(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete_now(key)

    def delete_now(self, key: str) -> None:
        if key not in self._objects:
            return
        self._judge_delete(key)
        self._forget(key)
        self._tell_of_parquet(key)
        for gone in self._until_gone.pop(key, ()):
            if not gone.done():
                gone.set_result(None)

    def create_now(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Raises AlreadyExists."""
        self._create(key, buffers)

    def replace_now(self, key: str, data: bytes) -> None:
        self._judge_replace(key, data)
        self._replace(key, data)

    async def share(self, key: str, life_ms: int) -> str:  # type: ignore[override]
        return f"{PLACE}/{key}"

    async def put(self, key: str, data: Buffer) -> None:
        self._judge_replace(key, bytes(data))
        await super().put(key, data)
        if TABLE_LOG in key:
            self.on_table(key)

    async def close_fence(self, fence: str) -> None:
        self._judge_close(fence)
        await super().close_fence(fence)

    def _judge_replace(self, key: str, data: bytes) -> None:
        """Only heartbeats and hints of Delta logs may be replaced; what is stored twice also, by what has
        stood there before; and the version of `cluster.json`, by the one that means added bundles.
        """
        if key.endswith(TABLE_LOG + LAST_CHECKPOINT):
            return
        if key == keys.CLUSTER and _is_grown(json.loads(bytes(self._objects[key].data)), json.loads(data)):
            return
        if not key.startswith(keys.BROKERS) and data not in self.ever[keys.original_of(key) or key]:
            self.violations.append(Violation("overwritten", f"{key} was put without a condition"))

    def _judge_copy(self, key: str, data: bytes) -> None:
        """A copy holds what has stood at the key of its original."""
        original = keys.original_of(key)
        if original is None:
            if keys.copy_of(key) is not None:
                self.ever[key].add(data)
        elif data not in self.ever[original]:
            self.violations.append(Violation("a loser's copy", f"{key} was put, its original never had these bytes"))

    def _judge_close(self, name: str) -> None:
        """While a plan is open no process may take away its tasks' right to put, but by cutting it
        short.
        """
        fence = keys.parse_fence(name)
        if fence is None or name in getattr(asyncio.get_running_loop(), "cut_short", ()):
            return
        put = self.first.get(keys.compaction(fence.bundle, fence.plan))
        if put is None or fence.plan <= self.newest_checkpoint(fence.bundle).finished_plan:
            return
        if decode_plan(put, keys.compaction(fence.bundle, fence.plan)).put_id == fence.put_id:
            self.violations.append(
                Violation(
                    "live object deleted", f"the fence of open plan {fence.plan} of bundle {fence.bundle} was closed"
                )
            )

    def damage_now(self, key: str, data: bytes) -> None:
        """What stands there is other bytes from now on; what was stored first is still the truth."""
        self._replace(key, data)

    def take_away_now(self, key: str) -> None:
        """Another program deletes it: no rule judges that."""
        self._forget(key)

    def read_now(self, key: str) -> bytes:
        """Raises ObjectMissing."""
        return self._stored(key).data

    def info_now(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""
        return self._stored(key).info

    def list_now(self, prefix: str, start_after: str, count_max: int) -> list[ObjectInfo]:
        found = []
        at = bisect_right(self._keys, max(prefix, start_after)) if start_after else bisect_left(self._keys, prefix)
        while at < len(self._keys) and self._keys[at].startswith(prefix) and len(found) < count_max:
            found.append(self._objects[self._keys[at]].info)
            at += 1
        return found

    def has(self, key: str) -> bool:
        return key in self._objects

    def now_ms(self) -> int:
        return self._sources.now_ms()

    def now_us(self) -> int:
        return self._sources.now_us()

    def _tell_of_parquet(self, key: str) -> None:
        name = parquet_name(key)
        if name is not None and name.topic is not None:  # plain readers do not see a hidden topic
            self.on_parquet(name)
        elif TABLE_LOG in key:
            self.on_table(key)
        elif key.startswith(keys.MERGED) or "/_merged/" in key:
            self.on_merged(key)
        elif key.startswith(keys.KEYED) and (keyed := keys.parse_keyed(key)) is not None:
            self.on_keyed(keyed)

    def keys_now(self, prefix: str) -> list[str]:
        first = bisect_left(self._keys, prefix)
        return self._keys[first : bisect_left(self._keys, prefix + "\x7f", first)]

    def reader(self, key: str) -> pa.BufferReader:
        return pa.BufferReader(self._stored(key).data)

    def newest_checkpoint(self, bundle: int) -> fmt.Checkpoint:
        """The highest number ever created."""
        return self._newest.get(bundle) or fmt.Checkpoint(bundle=bundle, trim_slot=1)

    def history(self, bundle: int) -> Sequence[StoredSegment]:
        """Every slot from 1 on, as it was first created, up to the first that is missing."""
        known, slots, fold = self._histories[bundle], self.segments[bundle], self._folds[bundle]
        while (slot := len(known) + 1) in slots:
            index, data = slots[slot]
            moment = self.moments[keys.segment(bundle, slot)]
            known.append(StoredSegment(slot, index, data, fold.take(index), moment))
        return known

    def _note(self, key: str, data: bytes) -> None:
        found = _NUMBERED.match(key)
        if found is None:
            self._judge_decision(key, data)
            return
        bundle, number = int(found[1]), int(found[3])
        if found[2] == "segments":
            index = decode_tail(data, bundle, number).index
            self.segments[bundle][number] = (index, data)
            self.claims += index.kind == fmt.CLAIM
            self.on_segment(bundle, index)
            if bundle == keys.METADATA_BUNDLE:
                self.on_metadata(StoredSegment(number, index, data, valid=True))
        elif number > self.newest_checkpoint(bundle).number:
            newest = decode_checkpoint(data, key)
            self.violations += goes_back(self.newest_checkpoint(bundle), newest)
            self._newest[bundle] = newest
            self.on_checkpoint(newest)
            self._note_commit()

    def _judge_delete(self, key: str) -> None:
        found = _NUMBERED.match(key)
        if found is None:
            self._judge_staged(key)
            return
        bundle, number = int(found[1]), int(found[3])
        if found[2] == "checkpoints":
            if number >= self.newest_checkpoint(bundle).number:
                self.violations.append(Violation("live object deleted", f"{key} is the newest checkpoint"))
            return
        index, _ = self.segments[bundle][number]
        if number >= self.newest_checkpoint(bundle).trim_slot:
            self.violations.append(Violation("live object deleted", f"{key} is not below the trim slot"))
        if index.kind == fmt.CLAIM or not self.is_valid(bundle, number):
            self.violations.append(Violation("fence deleted", f"{key} is a claim or void, and was deleted"))

    def _judge_decision(self, key: str, data: bytes) -> None:
        """The rows that a decision names are there when it is put."""
        name = keys.parse_sink(key) if key.startswith(keys.SINKS) else None
        if name is not None and name.kind == "decided":
            gone = [staged for staged in decode_decision(data, key).objects if not self.has(staged)]
            self.violations += [Violation("rows that are gone were decided", f"{key} names {each}") for each in gone]

    def _judge_staged(self, key: str) -> None:
        """Rows that a decision names stay until their epoch is done."""
        name = keys.parse_sink(key) if key.startswith(keys.SINKS) else None
        if name is None or name.kind != "staged" or keys.sink_done_epoch(name.write, name.epoch) in self.first:
            return
        decision = keys.sink_decision(name.write, name.epoch)
        if decision in self.first and key in decode_decision(self.first[decision], decision).objects:
            self.violations.append(Violation("live object deleted", f"{key} is decided, and its epoch is not done"))

    def is_valid(self, bundle: int, slot: int) -> bool:
        return self.history(bundle)[slot - 1].valid


def goes_back(before: fmt.Checkpoint, after: fmt.Checkpoint) -> list[Violation]:
    """What a newer checkpoint may never take back (design C4)."""
    counters = [
        ("slot", before.state.slot, after.state.slot),
        ("trim slot", before.trim_slot, after.trim_slot),
        ("finished plan", before.finished_plan, after.finished_plan),
        ("planned slot", before.planned_slot, after.planned_slot),
        ("metadata offset", before.metadata_offset, after.metadata_offset),
    ]
    later = {PartitionId(part.topic_id, part.partition): part for part in after.partitions}
    for part in before.partitions:
        now = later.get(PartitionId(part.topic_id, part.partition), part)
        if now.forgotten:  # the other bundle has taken over what it counts: `ParquetWatch` judges that
            continue
        counters.append((f"log start of {part.topic_id}-{part.partition}", part.log_start, now.log_start))
        counters.append((f"end of Parquet of {part.topic_id}-{part.partition}", part.parquet_end, now.parquet_end))
    where = f"bundle {after.bundle} checkpoint {after.number}"
    return [
        Violation("checkpoint goes back", f"{where}: {name} from {old} to {new}")
        for name, old, new in counters
        if new < old
    ]


def ledger_log(store: WatchedStore, bundle: int) -> dict[tuple[int, int], dict[int, str]]:
    """(topic id, partition) → offset → value, of all segments that ever were valid; a doubled
    offset shows as the value "a|b".
    """
    logs: defaultdict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for segment in store.history(bundle):
        if not segment.valid:
            continue
        for batch in segment.batches:
            log = logs[PartitionId(batch.topic_id, batch.partition)]
            for offset, value in enumerate(batch.values, batch.base_offset):
                text = value.decode(errors="replace") if value is not None else ""
                log[offset] = f"{log[offset]}|{text}" if offset in log else text
    return logs


def _is_grown(first: dict[str, object], now: dict[str, object]) -> bool:
    """Return whether only the version of a cluster differs, by the one step that there is."""
    same = {name: value for name, value in first.items() if name not in ("format_version", CHECKSUM)}
    return {**same, "format_version": GROWN_VERSION, CHECKSUM: checksum_of(now)} == now
