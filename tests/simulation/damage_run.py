"""Rounds of Parquet compaction in which one object is damaged half-way, judged by rules of its own.

Whoever meets the object refuses and names it, or parks the one partition whose batch it is; all other partitions go on, to the end, with
every record; nothing else is ever called damaged; and `ledgermq fsck` names the object, if it is still there at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from ledger import keys
from ledger.blocking import run_inline
from ledger.catalog import read_catalog
from ledger.fsck.check import check_root
from ledger.fsck.problem import Severity
from ledger.parquet.engine import LocalEngine
from ledger.parquet.removal import remove_topics
from ledger.parquet.runner import compact_root
from ledger.segment import decode_tail
from ledgermq.errors import LedgerMQError
from tests.simulation.history import FinalLog, Partition
from tests.simulation.loop import SimulatedLoop
from tests.simulation.model import Violation
from tests.simulation.rounds_plan import BUNDLES
from tests.simulation.rounds_processes import bundle_of
from tests.simulation.rounds_run import STRANGER, RoundsRun

KINDS = ("batch", "index", "checkpoint", "plan", "page", "snapshot", "parquet")
LAST_ROUNDS = 12


class DamageRun(RoundsRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self._random = random.Random(f"damage {seed}")
        self._kind = self._random.choice(KINDS)
        self._partition: tuple[int, int] | None = None
        """(topic id, partition) of a damaged batch or Parquet file."""
        self._refused: set[int] = set()
        """Bundles that could not be compacted at the end, naming the object."""

    async def _let_run(self) -> None:
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

    def _targets(self) -> Iterator[tuple[str, int, int]]:
        """(key, first byte, end): what of this kind is in use now."""
        store = self.world.store
        if self._kind in ("batch", "index"):
            yield from self._segments()
            return
        folders = {"plan": keys.compactions, "page": keys.file_pages}
        for bundle in range(BUNDLES):
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
        store, sources = world.line("last"), world.sources("last rounds", clock="last")
        engine = LocalEngine(sources, run_inline)
        for _ in range(LAST_ROUNDS):
            try:
                report = await compact_root(store, sources, engine)
                self._refused = set(report.failures)
                for error in report.failures.values():
                    world.judge_error(error)
                catalog = await read_catalog(store, self.cluster.producer_states_max)
                removals = await remove_topics(store, self.cluster, catalog, sources, engine)
                for error in removals.failures.values():
                    world.judge_error(error)
            except LedgerMQError as error:
                world.judge_error(error)
            await asyncio.sleep(2.0)
        if len(self._refused) > 1:
            world.violations.append(Violation("damage spreads", f"bundles {sorted(self._refused)} cannot be compacted, {world.damaged}"))

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
        if 0 in self._refused:  # without `__metadata` nobody knows what there is to do
            return {}
        store = self.world.store
        parked = {
            (part.topic_id, part.partition): part.parked.object_key
            for bundle in range(BUNDLES)
            for part in store.newest_checkpoint(bundle).partitions
            if part.HasField("parked")
        }
        for key, damaged in parked.items():
            self.world.coverage.saw("a partition was parked")
            if damaged != self.world.damaged:
                self.world.violations.append(Violation("damage spreads", f"{key} is parked for {damaged}, damaged is {self.world.damaged}"))
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
