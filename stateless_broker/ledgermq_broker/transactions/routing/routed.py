"""Find what serves a call about a transaction.

A transactional id maps to one partition of `__transactions`, by a hash of its name; its coordinator is
the owner of that partition's bundle. Staged batches belong to the owner of their target's bundle. Any
other broker raises NotOwner, which names the owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from crc32c import crc32c

from ledgermq.errors import InvalidRequest, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import kafka_producer_id
from ledgermq_broker.groups.groups import Groups
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import Serving
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.from_wire import transaction_of, transactional_id_of
from ledgermq_broker.transactions.partition import TransactionCores, TransactionPartition
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.topic import Topic

RETRY_AFTER_MS = 500

A = TypeVar("A")

TransactionKind = CoreKind[TransactionCores, TransactionPartition]


class Routed(Serving[TransactionPartition]):
    """`address`: the address of this broker. `topic`: `__transactions`. `check_kafka()` raises Unavailable while a
    broker is present that cannot read what transactions of the Kafka protocol store.
    """

    def __init__(
        self,
        address: str,
        topic: InternalTopic,
        metadata: Metadata,
        terms: InternalTerms,
        kind: TransactionKind,
        groups: Groups,
        store_clock: StoreClock,
        check_kafka: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(topic, terms, kind)
        self._check_kafka = check_kafka
        self._address = address
        self._metadata = metadata
        self._groups = groups
        self._store_clock = store_clock

    async def in_bundle(self, bundle: int) -> TransactionPartition:
        """Return the partition of `__transactions` that belongs to a bundle. Raises NotOwner, Unavailable,
        and the error of damaged data.
        """
        topic = self._topic.known
        if topic is None:
            raise Unavailable(
                f"this broker has not read topic {self._topic.name} yet; retry", retry_after_ms=RETRY_AFTER_MS
            )

        async def itself(found: TransactionPartition) -> TransactionPartition:
            return found

        return await self._terms.call(self._kind, topic, partition_in(topic, bundle), itself)

    async def _existing(self, transactional_id: str) -> Topic:
        """Return the topic for a call about an id that was initialized."""
        transactional_id_of(transactional_id)
        topic = self._topic.known or await self._topic.find()
        if topic is None:
            raise TransactionUnknown(
                f"transactional id {transactional_id!r} is unknown: this cluster has had no transaction yet; call"
                " InitTransactions first"
            )
        return topic

    async def _at_coordinator(
        self, topic: Topic, transactional_id: str, call: Callable[[Coordinating], Awaitable[A]]
    ) -> A:
        partition = partition_of(transactional_id, topic)
        return await self._terms.call(self._kind, topic, partition, lambda found: call(found.coordinating))


def partition_of(transactional_id: str, topic: Topic) -> int:
    """Return the partition of `__transactions` that decides about an id. The number of coordinators is
    fixed when the topic is created (X10).
    """
    return int(crc32c(transactional_id.encode())) % topic.settings.transaction_coordinators


def coordinator_of(ref: pb.TransactionRef, topic: Topic) -> int:
    return partition_of(transactional_id_of(ref.transactional_id), topic)


def named_transaction(ref: pb.TransactionRef, topic: Topic) -> Transaction:
    return transaction_of(ref, coordinator_of(ref, topic))


def staged_by_ours(transaction: Transaction) -> Transaction:
    """Return the transaction in which a client of ours stages. Raises InvalidRequest if it names a producer of the
    Kafka protocol: of these, only what their coordinator has confirmed is staged, so that no other caller can end in
    a bundle what they have not begun (X24).
    """
    if kafka_producer_id(transaction.producer_id) is not None:
        raise InvalidRequest(
            f"the producer id of {transaction.transactional_id!r} is one of a client of the Kafka protocol; initialize"
            " the transactional id again"
        )
    return transaction


def partition_in(topic: Topic, bundle: int) -> int:
    """Return the partition of `__transactions` that lies in a bundle."""
    if bundle not in topic.bundles:
        raise Unavailable(f"bundle {bundle} has no partition of {topic.name} yet; retry", retry_after_ms=RETRY_AFTER_MS)
    return topic.bundles.index(bundle)
