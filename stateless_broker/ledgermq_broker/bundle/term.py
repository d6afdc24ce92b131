"""What all calls of one term share: the state that they read, and the checks that they make."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable, UnknownPartition
from ledgermq_broker.bundle.loads import Traffic
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading.owned_ledger import OwnedLedger
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.upkeep.upkeep import Upkeep
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import has_its_files
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.topics.topic import Topic

T = TypeVar("T")


class Term:
    """One term of ownership of a bundle; `traffic` counts its calls.

    Every call checks before it answers that the term is not over, and that the partition is here.
    """

    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered, moving: Moving) -> None:
        self.bundle = writer.bundle
        self.epoch = writer.epoch
        self.ended = writer.ended
        self.traffic = Traffic()
        self._context = context
        self._writer = writer
        self._moving = moving
        self._ledger = OwnedLedger(context, writer, recovered)
        self._upkeep = Upkeep(context, writer, self._ledger.view)

    @property
    def lost(self) -> LedgerMQError | None:
        return self._writer.lost

    async def _in_term(self, reading: Coroutine[None, None, T]) -> T:
        """Return what the call read, unless the term has ended meanwhile. Its end drops the state
        under the call, so errors of the call prove nothing either.
        """
        try:
            found = await reading
        except LedgerMQError:
            self._check_term()
            raise
        self._check_term()
        return found

    def _check_term(self) -> None:
        lost = self.lost
        if lost is not None:
            raise NotOwner(
                f"bundle {self.bundle}: the term of epoch {self.epoch} is over: {lost.message}", owner=lost.owner
            ) from lost

    def _check_partition(self, topic: Topic, partition: int) -> None:
        if not 0 <= partition < topic.partitions:
            raise UnknownPartition(f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
        if topic.bundles[partition] != self.bundle:
            raise NotOwner(f"{topic.name}/{partition} is in bundle {topic.bundles[partition]}, not {self.bundle}")
        self._moving.check_arrived(topic.id, partition)

    def _opened_above(self, key: PartitionId, offset: int) -> fmt.PartitionOpen | None:
        """Return the open of a partition that came here with this offset in another ledger, until its files are
        listed here.
        """
        opened = self._writer.durable.moves.open_of(key)
        if opened is None or offset >= opened.start:
            return None
        counters = self._ledger.view.counters.get(key)
        return opened if counters is None or not has_its_files(opened, counters) else None

    def _check_whole(self, topic: Topic, partition: int, offset: int) -> None:
        """Raise Unavailable if records of a partition from this offset on are in another ledger."""
        opened = self._opened_above(PartitionId(topic.id, partition), offset)
        if opened is not None:
            raise Unavailable(
                f"{topic.name}/{partition}: the records below offset {opened.start} are in bundle {opened.source} until"
                f" move {opened.move} has ended",
                retry_after_ms=5000,
            )
