"""Carry out what moves of partitions ask of one bundle's owner (design, chapter 21).

The owner of the bundle that a partition leaves seals it in its ledger, once nothing keeps it there: batches
of open transactions, timed messages, an exclusive producer (Y13). Before a move is decided, the controller asks
for that, and the owner takes nothing of this kind in for a few seconds. What queue groups know of the partition
goes along (Y15): once the move is decided they change nothing of it here, and the seal waits until their last
change is durable.

The owner of the bundle that the partition moves to reads that seal in the other ledger, as any reader would, brings
what queue groups know of it, and opens the partition in its own. Each step may be repeated, by this owner or a
later one: the ledger takes the seal or the open of a move once. The catalog only says what to do; what has been done is
in the ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ledgermq.errors import NotOwner, PartitionBusy, Unavailable
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.topics.topic import PartitionMove, Topic

AGAIN_FIRST_S, AGAIN_S_MAX = 0.1, 5.0
"""Pause between two looks for a seal, which cost a recovery of the other ledger."""
LEAVING_S = 5.0
"""For so long nothing that would keep a partition here is taken while its move is decided."""
RETRY_AFTER_MS = 250
UNDER_WAY = "batches that are stored together with others are under way to it: retry"

log = get_logger(__name__)


class Moving:
    """What one term of ownership does for moves. `run` until the term ends. `has_own(key)`: whether batches that
    are stored together with others wait for a partition.
    """

    def __init__(self, context: BundleContext, writer: LedgerWriter, has_own: Callable[[PartitionId], bool]) -> None:
        self._bundle = writer.bundle
        self._context = context
        self._writer = writer
        self._has_own = has_own
        self._news = asyncio.Event()
        self._read = SegmentIndexes()
        """Of the ledgers of other bundles, while their seals are awaited."""
        self._leaving: dict[PartitionId, float] = {}
        """Partitions whose move is being decided, and until when that is waited for."""

    def catalog_changed(self) -> None:
        self._news.set()

    def prepare(self, key: PartitionId, *, dry_run: bool) -> None:
        """Let nothing new keep a partition in this bundle for a few seconds, so that its move can be decided; with
        `dry_run`, only check.

        Raises PartitionBusy, NotOwner if it has left already, and Unavailable while it is not known what keeps it.
        """
        if self._writer.durable.moves.seal_of(key) is not None:  # the catalog of this broker is older than that
            raise NotOwner(f"{self._name(key)} has left bundle {self._bundle}", retry_after_ms=RETRY_AFTER_MS)
        self._check_free(key)
        if not dry_run:
            now = self._now_s()
            self._leaving = {other: until for other, until in self._leaving.items() if until > now}
            self._leaving[key] = now + LEAVING_S

    def check_in_charge(self, key: PartitionId) -> None:
        """Check that something may be taken in that keeps a partition in this bundle. Raises NotOwner if the
        catalog has it in another one, and Unavailable if it is on its way, or its move is being decided.
        """
        self.check_here(key)
        if self._leaving.get(key, 0.0) > self._now_s():
            raise Unavailable(f"{self._name(key)} is about to move to another bundle", retry_after_ms=RETRY_AFTER_MS)

    def check_here(self, key: PartitionId) -> None:
        """Check that what is known of a partition is known in this bundle. Raises NotOwner if it has left, or is to
        leave, and Unavailable if it has not come yet.
        """
        if self.leaves(key):
            raise NotOwner(f"{self._name(key)} leaves bundle {self._bundle}", retry_after_ms=RETRY_AFTER_MS)
        self.check_arrived(*key)

    def is_here(self, key: PartitionId) -> bool:
        """Return whether `check_here` raises nothing."""
        return not self.leaves(key) and not self._is_expected(*key)

    def leaves(self, key: PartitionId) -> bool:
        """Return whether a partition has left this bundle, or its move away is decided. A catalog that is older than
        the ledger says nothing: the partition may be back.
        """
        moves, topic = self._writer.durable.moves, self._context.catalog().topics_by_id.get(key.topic_id)
        move = topic.moves.get(key.partition) if topic is not None else None
        if topic is None or move is None or move.id < moves.move(key):
            return moves.seal_of(key) is not None
        return topic.bundles[key.partition] != self._bundle

    def _check_free(self, key: PartitionId) -> None:
        """Raise PartitionBusy if something keeps a partition here."""
        kept = list(self._context.kept(self._bundle, key))
        if self._has_own(key):
            kept.append(UNDER_WAY)
        if kept:
            raise PartitionBusy(f"{self._name(key)} cannot leave bundle {self._bundle} now: {'; '.join(kept)}")

    def _name(self, key: PartitionId) -> str:
        topic = self._context.catalog().topics_by_id.get(key.topic_id)
        return f"{topic.name if topic else f'topic {key.topic_id}'}/{key.partition}"

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def check_arrived(self, topic_id: int, partition: int) -> None:
        """Raise Unavailable if the catalog has a partition in this bundle that its ledger has not opened yet:
        nothing about it is known here.
        """
        if self._is_expected(topic_id, partition):
            topic = self._context.catalog().topics_by_id[topic_id]
            move = topic.moves[partition]
            raise Unavailable(
                f"{topic.name}/{partition} moves from bundle {move.source} to bundle {self._bundle} at the moment (move"
                f" {move.id})",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _is_expected(self, topic_id: int, partition: int) -> bool:
        """Return whether the catalog has a partition in this bundle that its ledger has not opened yet."""
        catalog = self._context.catalog()
        if not catalog.moved:
            return False
        topic = catalog.topics_by_id.get(topic_id)
        move = topic.moves.get(partition) if topic is not None else None
        if topic is None or move is None or topic.bundles[partition] != self._bundle:
            return False
        return self._known_move(topic, partition) < move.id

    async def run(self) -> None:
        """Carry out moves when the catalog names some, and again while the other bundle has not done its part."""
        backoff = Backoff(self._context.sources, AGAIN_FIRST_S, AGAIN_S_MAX)
        while True:
            self._news.clear()
            is_done = await self.carry_out()
            if is_done or await wait_for(self._news, backoff.next_s()):
                backoff.reset()
            if is_done:
                self._read = SegmentIndexes()
                await self._news.wait()

    async def carry_out(self) -> bool:
        """Do this bundle's part of what the catalog names. Return False if some of it has to be tried again."""
        is_done, coming = True, dict[int, list[tuple[PartitionId, PartitionMove]]]()
        for topic, partition, move in self._decided():
            key = PartitionId(topic.id, partition)
            if move.source == self._bundle:
                is_done &= await self._try(move, self._seal(key, move, topic.bundles[partition]))
            else:
                coming.setdefault(move.source, []).append((key, move))
        for source, wanted in coming.items():
            is_done &= await self._try(wanted[0][1], self._open_from(source, wanted))
        return is_done

    def _decided(self) -> list[tuple[Topic, int, PartitionMove]]:
        """Return the moves from and to this bundle that its ledger does not know yet."""
        return [
            (topic, partition, move)
            for topic, partition, move in self._context.catalog().moving()
            if self._bundle in (move.source, topic.bundles[partition]) and self._known_move(topic, partition) < move.id
        ]

    async def _try(self, move: PartitionMove, step: Awaitable[bool]) -> bool:
        """Do this bundle's part. Return False if it has to be tried again."""
        try:
            return await step
        except Exception as error:  # any error, bugs included: the term continues without this work for now
            self._context.metrics.upkeep_failed(self._bundle, "move", error)
            log.warning("move put off", bundle=self._bundle, move=move.id, error=repr(error))
            return False

    async def _seal(self, key: PartitionId, move: PartitionMove, target: int) -> bool:
        self._check_free(key)  # and sealed in this turn of the event loop
        sealed = self._writer.seal(key, move.id, target, move.before)
        if sealed is None:
            return self._writer.durable.moves.move(key) >= move.id
        end = await sealed
        log.info("partition sealed", bundle=self._bundle, move=move.id, partition=str(key), end=end, target=target)
        return True

    async def _open_from(self, source: int, wanted: Sequence[tuple[PartitionId, PartitionMove]]) -> bool:
        """Open what another bundle has sealed. Its ledger is read once for all, and only further on by a later try."""
        ledger = replace(self._context.ledger(source), known=self._read)  # it belongs to another broker
        moves = (await recover(ledger)).state.moves
        sealed = [
            (key, move, seal)
            for key, move in wanted
            if (seal := moves.seal_of(key)) is not None and seal.move == move.id
        ]
        if sealed:
            await self._context.bring(source, self._bundle, {key for key, _, _ in sealed})
        opened = [await self._try(move, self._open(key, move, seal)) for key, move, seal in sealed]
        return all(opened) and len(sealed) == len(wanted)

    async def _open(self, key: PartitionId, move: PartitionMove, seal: fmt.PartitionSeal) -> bool:
        opened = self._writer.open_partition(open_after(seal, move.source))
        if opened is None:
            return self._writer.durable.moves.move(key) >= move.id
        start = await opened
        log.info("partition opened", bundle=self._bundle, move=move.id, partition=str(key), start=start)
        return True

    def _known_move(self, topic: Topic, partition: int) -> int:
        return self._writer.durable.moves.move(PartitionId(topic.id, partition))
