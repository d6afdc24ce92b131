"""Commit or drop the offsets that transactions have staged in the groups of one bundle, in the segment
that completes the rest of the transaction's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_broker.internal.core import Hosted
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic


class StagedOffsets(NamedTuple):
    """The groups of a bundle in which a transaction has staged offsets, and when it staged the first."""

    groups: tuple[str, ...]
    staged_ms: int


class PendingOffsets:
    """`hosted(topic name, partition)` returns a loaded partition of the same bundle."""

    def __init__(self, bundle: int, catalog: Callable[[], Catalog], hosted: Callable[[str, int], Hosted]) -> None:
        self._bundle = bundle
        self._catalog = catalog
        self._hosted = hosted

    def check_ready(self, groups: Sequence[str]) -> None:
        """Raise Unavailable or NotOwner if the partition of a group is not served now, and its error if it
        is damaged.
        """
        for group in groups:
            self._coordinator(group)

    def check_loaded(self, groups: Sequence[str]) -> None:
        """As `check_ready`, for an abort: a damaged partition does not hold it up. What is to be dropped
        there stays, and the bundle asks about it when the partition is served again.
        """
        for group in groups:
            with suppress(DataDamaged, FormatNotSupported):
                self._coordinator(group)

    def has_pending(self, group: str, transaction: Transaction) -> bool:
        """Return whether the transaction has staged offsets of the group. Raises as `check_ready`."""
        return self._coordinator(group).has_pending(
            group, transaction.producer_id, transaction.epoch, transaction.number
        )

    def has_here(self, group: str, transaction: Transaction) -> bool:
        """As `has_pending`; False for a group of another bundle."""
        topic = self._topic()
        if topic is None or topic.bundles[partition_of(group, topic.partitions)] != self._bundle:
            return False
        return self.has_pending(group, transaction)

    def open_number(self, producer_id: bytes, epoch: int, group: str) -> int:
        """Return the number of the transaction of this epoch that has staged offsets of the group; 0: none. Raises
        as `check_ready`.
        """
        return self._coordinator(group).pending_number(group, producer_id, epoch)

    def other_id(self, transaction: Transaction) -> str | None:
        """Return another transactional id under which this producer id has staged offsets in the bundle."""
        of_producer = (name for _, _, found in self._served() for name in found.pending_names(transaction.producer_id))
        return next((name for name in of_producer if name != transaction.transactional_id), None)

    def settle(self, transaction: Transaction, groups: Sequence[str]) -> Mapping[PartitionId, Sequence[LogRecord]]:
        """Commit the transaction's offsets of these groups, and drop all other offsets that its producer
        has staged in this bundle at or below the transaction. Return the records to append.

        Call `check_ready` for the groups first, in the same turn. A partition that is not served keeps
        offsets that should be dropped; the bundle asks about them later.
        """
        return {
            PartitionId(topic.id, partition): found.settle_pending(
                transaction.producer_id,
                transaction.epoch,
                transaction.number,
                groups,
                transaction.transactional_id,
            )
            for topic, partition, found in self._served()
        }

    def old(self, older_than_ms: int) -> dict[Transaction, tuple[str, ...]]:
        """Return the transactions whose offsets have been staged for longer than this, with their
        groups.
        """
        return {one: staged.groups for one, staged in self.staged(older_than_ms).items()}

    def staged(self, older_than_ms: int = 0) -> dict[Transaction, StagedOffsets]:
        """Return what has been staged for longer than this, by transaction."""
        found: dict[Transaction, StagedOffsets] = {}
        for _, _, coordinator in self._served():
            for one in coordinator.pending_transactions(older_than_ms):
                transaction = Transaction(one.transactional_id, one.coordinator, one.producer_id, one.epoch, one.number)
                known = found.get(transaction, StagedOffsets((), one.staged_ms))
                found[transaction] = StagedOffsets((*known.groups, *one.groups), min(known.staged_ms, one.staged_ms))
        return found

    def _coordinator(self, group: str) -> PartitionCoordinator:
        topic = self._topic()
        partition = partition_of(group, topic.partitions) if topic is not None else 0
        if topic is None or topic.bundles[partition] != self._bundle:
            raise DataDamaged(
                f"a transaction counts offsets of group {group} in bundle {self._bundle}, which does not hold it"
            )
        return cast(PartitionCoordinator, self._hosted(topic.name, partition))

    def _served(self) -> Iterator[tuple[Topic, int, PartitionCoordinator]]:
        topic = self._topic()
        for partition, bundle in enumerate(topic.bundles if topic is not None else ()):
            if topic is not None and bundle == self._bundle:
                try:
                    yield topic, partition, cast(PartitionCoordinator, self._hosted(topic.name, partition))
                except LedgerMQError:
                    continue

    def _topic(self) -> Topic | None:
        return self._catalog().topics_by_name.get(keys.OFFSETS_TOPIC)
