"""A minimal broker: it claims one ledger with the product's code, serves it, loses it, and claims
it again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

from ledgermq.errors import DuplicateMessage, LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.sources import Sources
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.writer import LedgerWriter, claim
from tests.judges.violation import Violation
from tests.simulation.loop import Process
from tests.simulation.plan import RunPlan
from tests.simulation.world import World
from tests.worlds.ledgers import ledger_of

BUNDLE = 1
PUTS_IN_FLIGHT_MAX = 4
IDS_WINDOW_US = 5_000_000


class LedgerBroker:
    """One incarnation; `process` is its life."""

    def __init__(
        self,
        world: World,
        plan: RunPlan,
        name: str,
        incarnation: int,
        others: Mapping[str, LedgerBroker],
        bundle: int = BUNDLE,
    ) -> None:
        self.name = name
        self.bundle = bundle
        self.process: Process = world.start(name)
        self.writer: LedgerWriter | None = None
        self._waiting = 0
        self._ids_us = 0
        """The latest time by which ids were judged here."""
        self._ends_at_claim: dict[PartitionId, int] = {}
        self._others = others
        self._world = world
        self._plan = plan
        self._store = world.line(name)
        self._sources: Sources = world.sources(f"{name} {incarnation}")
        self.process.spawn(self._live())

    @property
    def serves(self) -> bool:
        return self.writer is not None and self.writer.lost is None

    async def _live(self) -> None:
        random = self._sources.random
        while True:
            await asyncio.sleep(random.uniform(0, self._plan.patience_s if not self._world.healed else 1.0))
            if self._world.healed and any(b.serves and b.bundle == self.bundle for b in self._others.values()):
                continue
            try:
                ledger = ledger_of(self._store, self.bundle, cluster=self._plan.cluster, sources=self._sources)
                self.writer = LedgerWriter(ledger, self.name, await claim(ledger, self.name))
            except LedgerMQError as error:
                self._world.note(self.name, f"no claim: {error.message[:80]}")
                self._world.judge_error(error)
                continue
            self._ends_at_claim = dict(self.writer.durable.ends)
            self._world.note(self.name, f"owns, epoch {self.writer.epoch}")
            await self._serve(self.writer)

    async def _serve(self, writer: LedgerWriter) -> None:
        random = self._sources.random
        while writer.lost is None:
            try:
                async with asyncio.timeout(random.uniform(0, 2 * self._plan.checkpoint_every_s)):
                    await writer.ended.wait()
            except TimeoutError:
                await self._upkeep(writer)
        self._world.note(self.name, f"term over: {writer.lost.message[:80]}")
        self._check_loss(writer, writer.lost.message)
        await asyncio.sleep(1.0)
        if self._waiting:
            self._world.violations.append(
                Violation("waiter forgotten", f"{self.name}: {self._waiting} appends, a second after their term")
            )

    def _check_loss(self, writer: LedgerWriter, why: str) -> None:
        """A term may end for many reasons, but never because the writer's own segment stands in the
        slot.
        """
        lost = re.search(r"slot (\d+) was lost", why)
        if lost is not None:
            index, _ = self._world.store.segments[self.bundle][int(lost[1])]
            if index.writer == writer.durable.writer:
                self._world.violations.append(Violation("won put taken as lost", f"{self.name}: {why}"))

    async def _upkeep(self, writer: LedgerWriter) -> None:
        try:
            if self._sources.random.random() < 0.1 and not self._world.healed:
                self._world.coverage.saw("a term was released")
                await writer.release()
            else:
                await advance_checkpoint(
                    ledger_of(self._store, self.bundle, cluster=self._plan.cluster, sources=self._sources),
                    durable=writer.durable,
                )
        except LedgerMQError as error:
            self._world.note(self.name, f"upkeep: {error.message[:80]}")

    async def append(self, batch: Batch) -> int:
        writer = self._owned()
        if writer.puts_in_flight >= PUTS_IN_FLIGHT_MAX:
            raise ResourceExhausted("too many puts in flight")
        self._waiting += 1
        if batch.ids:
            self._ids_us = max(self._ids_us, writer.durable.append_us, self._sources.now_us())
            batch = replace(batch, ids_us=self._ids_us, ids_until_us=self._ids_us + IDS_WINDOW_US)
        durable_end = writer.durable.end(batch.topic_id, batch.partition)
        append = Append(batch, asyncio.get_running_loop().create_future())
        writer.write([append])
        try:
            return await append.done
        except DuplicateMessage as found:
            self._cover(found, durable_end, self._ends_at_claim.get(PartitionId(batch.topic_id, batch.partition), 0))
            raise
        except NotOwner:
            self._world.coverage.saw("a waiter was told that the term is over")
            if self._waiting > 1:
                self._world.coverage.saw("a fence happened while 2 puts or more were in flight")
            raise
        finally:
            self._waiting -= 1

    def _cover(self, found: DuplicateMessage, durable_end: int, claimed_end: int) -> None:
        for _, offset in found.stored:
            self._world.coverage.saw("a duplicate was found")
            if offset < claimed_end:
                self._world.coverage.saw("a duplicate of an earlier term was found")
            if offset >= durable_end:
                self._world.coverage.saw("a duplicate waited for its original")

    async def opened_slot(self, topic_id: int, partition: int) -> int:
        durable = self._owned().durable
        return durable.moves.opened_slot(PartitionId(topic_id, partition), durable.slot + 1)

    async def latest(self, topic_id: int, partition: int) -> int:
        writer = self._owned()
        end = writer.durable.end(topic_id, partition)
        await writer.check_fence()
        return end

    def _owned(self) -> LedgerWriter:
        if self.writer is None:
            raise NotOwner(f"{self.name} owns nothing")
        return self.writer


def session(producer: bytes, sequence: int, opened_slot: int) -> ProducerSession:
    return ProducerSession(producer, 0, sequence, opened_slot)
