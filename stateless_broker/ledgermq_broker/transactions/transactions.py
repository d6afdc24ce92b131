"""Serve the transactions of a cluster in one broker: route calls to coordinators and participants.

A transactional id maps to one partition of `__transactions`, by a hash of its name; its coordinator is
the owner of that partition's bundle. Staged batches belong to the owner of their target's bundle. Any
other broker raises NotOwner, which names the owner.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    UnknownPartition,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.heartbeat import KAFKA_TRANSACTIONS
from ledgermq_broker.groups.groups import GROUPS
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import BrokerParts, Feature
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_broker.transactions.coordinating.unresolved import UnresolvedTopics
from ledgermq_broker.transactions.counts import TransactionCounts, gauges
from ledgermq_broker.transactions.from_wire import (
    kind_of,
    outcome_of,
    part_of,
    parts_of,
    transaction_to_end,
    transactional_id_of,
)
from ledgermq_broker.transactions.partition import TransactionCores, TransactionPartition
from ledgermq_broker.transactions.parts import TransactionParts
from ledgermq_broker.transactions.routing.added import AddedRoutes, named_producer
from ledgermq_broker.transactions.routing.routed import (
    TransactionKind,
    coordinator_of,
    named_transaction,
    partition_in,
    staged_by_ours,
)
from ledgermq_broker.transactions.state.checks import unresolved_topic
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_broker.transactions.state.wire import state_to_proto, transaction_to_proto
from ledgermq_broker.transactions.stored.check import add_transactions
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.settings import INTERNAL_KIND, STAGED, TRANSACTION_COORDINATORS


class Transactions(AddedRoutes):
    """All calls about transactions."""

    # Calls of producers

    async def init_transactions(self, request: pb.InitTransactionsRequest) -> pb.InitTransactionsResponse:
        transactional_id_of(request.transactional_id)
        kind = kind_of(request.kind)
        if request.HasField("kafka"):
            self._check_kafka()
        topic = await self._topic.find_or_create()
        identity = await self._at_coordinator(topic, request.transactional_id, lambda found: found.init(request, kind))
        for found in self.served() if identity.epoch > 1 else ():
            found.note_fenced(identity.producer_id, identity.epoch)
        return pb.InitTransactionsResponse(
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            coordinator=identity.coordinator,
            timeout_ms=identity.timeout_ms,
            now_us=self._store_clock.now_us() or 0,
            former=state_to_proto(identity.former),
            kept_ms=request.kept_ms,
        )

    async def stage_offsets(self, request: pb.StageOffsetsRequest) -> pb.StageOffsetsResponse:
        topic = await self._existing(request.transaction.transactional_id)
        if request.HasField("added"):
            bundle = await self._groups.bundle_of(request.group)
            transaction = await self.open_transaction(
                request.transaction, bundle, group=request.group, adds=request.added.adds
            )
            asked, request = request, pb.StageOffsetsRequest()
            request.CopyFrom(asked)
            request.transaction.CopyFrom(transaction_to_proto(transaction))
        else:
            transaction = staged_by_ours(named_transaction(request.transaction, topic))

        def check_open(bundle: int) -> None:
            self._terms.hosted(self._kind, topic, partition_in(topic, bundle)).check_open(transaction)

        return await self._groups.stage_in_transaction(request, check_open)

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        topic = await self._existing(request.transaction.transactional_id)
        outcome = outcome_of(request.outcome)
        if request.added:
            name, named = request.transaction.transactional_id, named_producer(request.transaction)
            if outcome is State.PREPARED:
                raise InvalidRequest("a transaction of the Kafka protocol is committed or aborted, not prepared")
            renews = request.renews
            ended = await self._at_coordinator(
                topic, name, lambda found: found.added.end(name, named, outcome, renews=renews)
            )
            return pb.EndTransactionResponse(
                state=state_to_proto(ended.state),
                producer_id=ended.producer.producer_id if renews else b"",
                epoch=ended.producer.epoch if renews else 0,
            )
        topic = await self._topic.in_bundles(topic, (part.bundle for part in request.parts))
        parts = parts_of(request.parts, topic.bundles)
        transaction = transaction_to_end(request.transaction, coordinator_of(request.transaction, topic))
        state = await self._at_coordinator(
            topic, transaction.transactional_id, lambda found: found.end(transaction, outcome, parts)
        )
        return pb.EndTransactionResponse(state=state_to_proto(state))

    async def transaction_outcome(self, request: pb.TransactionOutcomeRequest) -> pb.TransactionOutcomeResponse:
        topic = await self._existing(request.transactional_id)
        found = await self._at_coordinator(topic, request.transactional_id, lambda found: found.outcome(request))
        return pb.TransactionOutcomeResponse(state=state_to_proto(found.state), complete=found.complete)

    async def poll_checks(self, request: pb.PollChecksRequest) -> pb.PollChecksResponse:
        """Return half messages for this producer to check. The call is held until there is one."""
        unresolved_topic(request.check_group)
        topic = self._topic.known or await self._topic.find()
        if topic is None:
            return pb.PollChecksResponse()
        coordinators = topic.settings.transaction_coordinators
        if request.partition >= coordinators:
            raise UnknownPartition(f"coordinators are numbered 0 to {coordinators - 1}, not {request.partition}")
        checks = await self._terms.call(
            self._kind, topic, request.partition, lambda found: found.coordinating.poll_checks(request)
        )
        return pb.PollChecksResponse(checks=checks, partitions=coordinators)

    async def settle(self, bundle: int, place: PartitionId, end_s: float) -> None:
        """Wait until the end of a partition counts all that offsets of groups may follow (`settling`).

        Raises Unavailable, NotOwner, and the error of damaged data.
        """
        topic = self._topic.known
        if topic is not None and bundle in topic.bundles:  # else nothing was ever staged there
            number = partition_in(topic, bundle)
            await self._terms.call(self._kind, topic, number, lambda found: found.settle(place, end_s))

    # Calls of operators

    async def resolve_transaction(self, request: pb.ResolveTransactionRequest) -> pb.ResolveTransactionResponse:
        topic = await self._existing(request.transactional_id)
        info = await self._at_coordinator(topic, request.transactional_id, lambda found: found.resolve(request))
        return pb.ResolveTransactionResponse(transaction=info)

    async def list_transactions(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        topic = await self._topic.find()
        if topic is None:
            return pb.ListTransactionsResponse()
        if request.partition >= topic.partitions:
            raise UnknownPartition(f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {request.partition}")
        infos, staged = await self._terms.call(
            self._kind, topic, request.partition, lambda found: found.list(request.open_only)
        )
        bundle = topic.bundles[request.partition]
        return pb.ListTransactionsResponse(
            transactions=infos, staged=staged, partitions=topic.partitions, bundle=bundle
        )

    async def describe_transaction(self, request: pb.DescribeTransactionRequest) -> pb.DescribeTransactionResponse:
        topic = await self._existing(request.transactional_id)
        name = request.transactional_id
        info, places = await self._at_coordinator(topic, name, lambda found: found.describe(name))
        topics = self._metadata.catalog.topics_by_id
        added = [
            pb.TopicPartition(topic=topics[place.topic_id].name, partition=place.partition)
            for place in sorted(places)
            if place.topic_id in topics
        ]
        return pb.DescribeTransactionResponse(transaction=info, coordinator=self._address, added=added)

    # Calls between brokers

    async def complete_transaction(self, request: pb.CompleteTransactionRequest) -> pb.CompleteTransactionResponse:
        """Complete one bundle's part.

        Only brokers may call this, where access rules are enforced (`access.authorized`): it can commit or
        drop staged data. A commit is confirmed with the coordinator only if the bundle has no note about
        the producer.
        """
        topic = await self._existing(request.transaction.transactional_id)
        transaction = named_transaction(request.transaction, topic)
        outcome = outcome_of(request.outcome, (State.COMMITTED, State.ABORTED))
        topic = await self._topic.in_bundles(topic, [request.part.bundle])
        part = part_of(request.part, topic.bundles)
        done = await self._terms.call(
            self._kind,
            topic,
            partition_in(topic, part.bundle),
            lambda found: found.complete(transaction, outcome, part),
        )
        return pb.CompleteTransactionResponse(done=done)

    async def ask_transaction(self, request: pb.AskTransactionRequest) -> pb.AskTransactionResponse:
        """Answer a bundle's question about a transaction.

        Only brokers may call this, where access rules are enforced: it can start the time-out of a transaction.
        """
        topic = await self._existing(request.transaction.transactional_id)
        transaction = named_transaction(request.transaction, topic)
        part = Part(topic.bundles[transaction.coordinator])
        if request.HasField("part"):
            topic = await self._topic.in_bundles(topic, [request.part.bundle])
            part = part_of(request.part, topic.bundles)
        elif request.question == pb.FATE:
            raise InvalidRequest("the question FATE needs a part: the counts of what is staged in the bundle")
        return await self._at_coordinator(
            topic, transaction.transactional_id, lambda found: found.answer(transaction, request.question, part)
        )

    async def read_staged(self, request: pb.ReadStagedRequest) -> pb.ReadStagedResponse:
        """Return what a bundle has staged.

        Only brokers may call this, where access rules are enforced: it shows data that is not committed.
        """
        topic = await self._existing(request.transaction.transactional_id)
        transaction = named_transaction(request.transaction, topic)
        topic = await self._topic.in_bundles(topic, [request.part.bundle])
        part = part_of(request.part, topic.bundles)
        return await self._terms.call(
            self._kind,
            topic,
            partition_in(topic, part.bundle),
            lambda found: found.read_staged(transaction, part, request.skip),
        )

    # For other parts of this broker

    async def named(self, ref: pb.TransactionRef) -> Transaction:
        """Return the transaction in which a client of ours stages. Raises InvalidRequest, TransactionUnknown,
        Unavailable.
        """
        return staged_by_ours(named_transaction(ref, await self._existing(ref.transactional_id)))

    def note_busy(self, bundle: int) -> None:
        """Note that a group of this bundle waits for the end of a transaction."""
        topic = self._topic.known
        if topic is not None and bundle in topic.bundles:
            with suppress(LedgerMQError):  # not served at present: the next owner asks
                self._terms.hosted(self._kind, topic, partition_in(topic, bundle)).note_busy()

    def is_quiet(self, bundle: int) -> bool:
        """Return whether nothing that the coordinator of a bundle of this broker has decided is incomplete (I2).

        Raises NotOwner; Unavailable while it is being loaded; and the error of damaged data.
        """
        topic = self._metadata.catalog.topics_by_name.get(keys.TRANSACTIONS_TOPIC)
        if topic is None or bundle not in topic.bundles:
            return True
        return self._terms.hosted(self._kind, topic, partition_in(topic, bundle)).coordinating.is_quiet

    async def drained(self, bundle: int) -> None:
        """Wait until all that the coordinator of a bundle of this broker has decided is durable (I22). Raises as
        `is_quiet`.
        """
        topic = self._metadata.catalog.topics_by_name.get(keys.TRANSACTIONS_TOPIC)
        if topic is not None and bundle in topic.bundles:
            await self._terms.hosted(self._kind, topic, partition_in(topic, bundle)).coordinating.drained()

    def has_staged(self, transaction: tuple[bytes, int, int]) -> bool:
        """Return whether a transaction, as producer id, epoch and number, has anything staged in the bundles
        of this broker.
        """
        return any(found.participant.has_staged(*transaction) for found in self.served())


def open_transactions(parts: BrokerParts) -> Transactions:
    """Build the transactions of a broker, and add them to its internal topics. Groups are open before them."""
    metadata, limits, groups = parts.metadata, parts.limits_of(TransactionLimits), parts.opened.of(GROUPS)
    sources = parts.context.sources

    def bundle_of(coordinator: int) -> int:
        return metadata.catalog.living(keys.TRANSACTIONS_TOPIC).bundles[coordinator]

    shared = TransactionParts(
        limits=limits,
        sources=sources,
        clocks=parts.clocks,
        catalog=lambda: metadata.catalog,
        calls=parts.calls,
        bundle_of=bundle_of,
        staged=lambda: metadata.catalog.living(keys.STAGED_TOPIC),
        unresolved=UnresolvedTopics(metadata, parts.at_controller, parts.controller).find_or_create,
        counts=parts.counts_of(TransactionCounts),
        carry_slots=parts.constants.carry_slots,
    )
    kind: TransactionKind = CoreKind(
        keys.TRANSACTIONS_TOPIC,
        lambda partition: TransactionCores(partition, bundle_of(partition), limits, sources),
        lambda cores, opening: TransactionPartition(cores, opening, shared),
    )
    parts.terms.add(kind)
    topic = parts.topic(keys.TRANSACTIONS_TOPIC)
    check = partial(parts.controller.require, KAFKA_TRANSACTIONS)
    transactions = Transactions(parts.address, topic, metadata, parts.terms, kind, groups, parts.store_clock, check)
    groups.when_busy(transactions.note_busy)
    return transactions


TRANSACTIONS = Feature(
    "transactions",
    (
        TopicSpec(keys.STAGED_TOPIC, settings={INTERNAL_KIND: STAGED}),
        TopicSpec(keys.TRANSACTIONS_TOPIC, counted_in=TRANSACTION_COORDINATORS),
    ),
    open_transactions,
    announced="transactions",
    gauges=gauges,
    check=add_transactions,
)
"""What happens to a transaction in a bundle is in the segments that hold its records. Earlier releases cannot read a
catalog with these topics.
"""
