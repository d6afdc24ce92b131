"""Rounds of Parquet compaction in which one object is damaged half-way, judged by rules of its own.

*metadata*: objects of bundle 0, originals and copies, are damaged or taken away one after the
other, each once the one before is mended or gone. No reader refuses, no topic and no record is
lost, and at the end `fsck` finds nothing. The other kinds are of bundles without copies: a process that
meets the object refuses and names it, or parks the one partition whose batch it is; all other
partitions go on, to the end, with every record; nothing else is ever called damaged; and `ledgermq
fsck` names the object, if it is still there at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.copies import copies_of, fault_of
from ledgermq_ledger.root.mend import is_needed, mend_copies
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import read_catalog
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog, Partition
from tests.simulation.loop import SimulatedLoop
from tests.simulation.rounds_plan import BUNDLES
from tests.simulation.rounds_processes import bundle_of
from tests.simulation.rounds_run import STRANGER, RoundsRun
from tests.worlds.ledgers import ledger_of

KINDS = ("batch", "index", "checkpoint", "plan", "page", "snapshot", "parquet", "metadata", "metadata")
LAST_ROUNDS = 12


class DamageRun(RoundsRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self._random = random.Random(f"damage {seed}")
        self._kind = self._random.choice(KINDS)
        self._partition: tuple[int, int] | None = None
        """(topic id, partition) of a damaged batch or Parquet file."""
        self._victim = ""
        """The original of bundle 0 of which one of the two was damaged last."""
        self._refused: set[int] = set()
        """Bundles that could not be compacted at the end, naming the object."""

    async def _let_run(self) -> None:
        if self._kind == "metadata":
            self.world.mends_metadata = True
            hand = self.world.loop.in_world(self._damage_metadata())
            await self.world.go_on(self.rounds.seconds, 2 * self.plan.requests_max)
            hand.cancel()
            return
        await asyncio.sleep(self.rounds.seconds / 2)
        begun = self.world.loop.time()
        while not self.world.damaged and self.world.loop.time() < begun + self.rounds.seconds / 2:
            self._damage_something()
            await asyncio.sleep(0.5)
        await asyncio.sleep(self.rounds.seconds / 2)

    def _damage_something(self) -> None:
        targets = list(self._targets())
        if not targets:
            return
        key, first, last = self._random.choice(targets)
        store = self.world.store
        data = bytearray(store.read_now(key))
        at = self._random.randrange(first, last)
        if self._random.random() < 0.3:
            del data[at:]
        else:
            data[at] ^= 1 << self._random.randrange(8)
        self.world.damaged = key
        self.world.note("world", f"damages {key} ({self._kind}) at byte {at}")
        self.world.coverage.saw(f"damaged: {self._kind}")
        store.damage_now(key, bytes(data))

    async def _damage_metadata(self) -> None:
        await asyncio.sleep(self.rounds.seconds / 10)
        while True:
            await asyncio.sleep(self._random.expovariate(1.0))
            await self._until_mended()
            if pairs := self._pairs_in_use():
                self._damage_one_of(self._random.choice(pairs))

    def _pairs_in_use(self) -> list[str]:
        """Originals of which both are there, and sound, and that the metadata still needs."""
        store, checkpoint = self.world.store, self.world.store.newest_checkpoint(0)
        segments = [key for key in store.keys_now(keys.segments(0)) if keys.is_numbered(key, keys.segments(0))]
        needed = [
            *(key for key in segments if keys.number(key) >= checkpoint.trim_slot),
            keys.checkpoint(0, checkpoint.number),
            keys.snapshot(0, checkpoint.snapshot_plan),
            keys.compaction(0, checkpoint.finished_plan + 1),
        ]
        return [key for key in needed if self._is_whole(key)]

    def _is_whole(self, key: str) -> bool:
        store = self.world.store
        return all(
            store.has(each) and fault_of(key, store.read_now(each)) is None for each in (key, f"{key}{keys.COPY}")
        )

    def _damage_one_of(self, key: str) -> None:
        store = self.world.store
        victim = self._random.choice((key, key, f"{key}{keys.COPY}"))
        data = bytearray(store.read_now(victim))
        at, how = self._random.randrange(len(data)), self._random.choice(("flips", "cuts", "takes away"))
        if (
            how == "takes away"
            and key == victim
            and any(folder in key for folder in ("/checkpoints/", "/compactions/"))
        ):
            how = "cuts"  # rivals are about to put the same number: those would find it empty, a second fault
        self.world.note("world", f"{how} {victim} (metadata) at byte {at}")
        self.world.coverage.saw("damaged: metadata")
        self.world.coverage.saw(f"metadata: {how} {key.split('/')[2]}")
        self._victim = key
        if how == "takes away":
            store.take_away_now(victim)
            return
        if how == "cuts":
            del data[at:]
        else:
            data[at] ^= 1 << self._random.randrange(8)
        store.damage_now(victim, bytes(data))

    async def _until_mended(self) -> None:
        """Or both are gone, as a rule wants it."""
        store = self.world.store
        while (key := self._victim) and not self._is_whole(key):
            if not store.has(key) and not store.has(f"{key}{keys.COPY}"):
                break
            if not self._is_needed(key):
                break  # what is left of it has no second one any more
            await asyncio.sleep(0.1)
        else:
            self.world.coverage.saw("a damaged object of bundle 0 was mended", int(bool(self._victim)))
        self._victim = ""

    def _is_needed(self, key: str) -> bool:
        copy = next(each for each in (key, f"{key}{keys.COPY}") if self.world.store.has(each))
        try:
            return is_needed(key, self.world.store.read_now(copy), self.world.store.newest_checkpoint(0))
        except DataDamaged:
            return True

    def _targets(self) -> Iterator[tuple[str, int, int]]:
        """(key, first byte, end): what of this kind is in use now."""
        store = self.world.store
        if self._kind in ("batch", "index"):
            yield from self._segments()
            return
        folders = {"plan": keys.compactions, "page": keys.file_pages}
        for bundle in range(1, BUNDLES):
            checkpoint = store.newest_checkpoint(bundle)
            if self._kind == "checkpoint" and checkpoint.number:
                found = [keys.checkpoint(bundle, checkpoint.number)]
            elif self._kind == "snapshot" and checkpoint.snapshot_plan:
                found = [keys.snapshot(bundle, checkpoint.snapshot_plan)]
            elif self._kind in folders:
                found = store.keys_now(folders[self._kind](bundle))
            else:
                found = []
            yield from ((key, 0, store.info_now(key).size) for key in found if store.has(key))
        if self._kind == "parquet":
            for key in store.keys_now(keys.PARQUET):
                if key != STRANGER:
                    yield key, 0, store.info_now(key).size

    def _segments(self) -> Iterator[tuple[str, int, int]]:
        store = self.world.store
        for bundle in range(1, BUNDLES):
            for key in store.keys_now(keys.segments(bundle)):
                slot = keys.number(key)
                if slot < store.newest_checkpoint(bundle).trim_slot:
                    continue
                data = store.read_now(key)
                found = decode_tail(data, bundle, slot)
                if self._kind == "index":
                    yield key, len(data) - found.tail_length, len(data)
                elif store.is_valid(bundle, slot):
                    yield from ((key, entry.position, entry.position + entry.length) for entry in found.index.batches)

    async def _finish_all(self) -> None:
        """As far as the damage allows: what fails has to name the object, and is one bundle."""
        world = self.world
        if self._kind == "metadata":
            copies = copies_of(world.line("last"))
            assert copies is not None
            await mend_copies(copies)
            await super()._finish_all()
            return
        store, sources = world.line("last"), world.sources("last rounds", clock="last")
        engine = LocalEngine(sources, run_inline)
        for _ in range(LAST_ROUNDS):
            try:
                report = await compact_root(store, sources, engine)
                self._refused = set(report.failures)
                for error in report.failures.values():
                    world.judge_error(error)
                catalog = await read_catalog(ledger_of(store, 0, cluster=self.cluster))
                removals = await remove_topics(Compaction(store, self.cluster, sources, engine), catalog)
                for error in removals.failures.values():
                    world.judge_error(error)
            except LedgerMQError as error:
                world.judge_error(error)
            await asyncio.sleep(2.0)
        if len(self._refused) > 1:
            world.violations.append(
                Violation("damage spreads", f"bundles {sorted(self._refused)} cannot be compacted, {world.damaged}")
            )

    async def _check_bucket(self) -> None:
        damaged = self.world.damaged
        checked = await check_root(self.world.line("last"), self.cluster, run_blocking=run_inline)
        named = False
        for problem in checked.problems:
            if problem.severity is not Severity.DAMAGE:
                continue
            if damaged and (problem.object_key == damaged or damaged in problem.text):
                named = True
            elif not damaged or _bundle_of(problem.object_key) != _bundle_of(damaged):
                self.world.violations.append(Violation("fsck", f"{problem.code} {problem.object_key}: {problem.text}"))
        if damaged and self.world.store.has(damaged) and not named:
            self.world.violations.append(Violation("damage not found", f"fsck does not name {damaged}"))
        self.world.coverage.saw("fsck named the damaged object", int(named))

    def _whole(self, logs: dict[Partition, FinalLog]) -> dict[Partition, FinalLog]:
        """The partitions that have to be complete in spite of it."""
        if 0 in self._refused:  # without `__metadata` no process knows what there is to do
            return {}
        store = self.world.store
        parked = {
            PartitionId(part.topic_id, part.partition): part.parked.object_key
            for bundle in range(BUNDLES)
            for part in store.newest_checkpoint(bundle).partitions
            if part.HasField("parked")
        }
        for key, damaged in parked.items():
            self.world.coverage.saw("a partition was parked")
            if damaged != self.world.damaged:
                self.world.violations.append(
                    Violation("damage spreads", f"{key} is parked for {damaged}, damaged is {self.world.damaged}")
                )
        return {
            (name, number): log
            for (name, number), log in logs.items()
            if bundle_of(number) not in self._refused and (int(name.rpartition("#")[2]), number) not in parked
        }


def _bundle_of(key: str) -> int:
    """Of a Parquet file: the one of its partition."""
    name = keys.parse_parquet(key)
    if name is not None:
        return bundle_of(name.partition)
    return int(key.split("/")[1]) if key.startswith("ledgers/") else -1
