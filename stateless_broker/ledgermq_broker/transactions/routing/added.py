"""Serve the calls of Kafka clients about their transactions, and what brokers ask each other for these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.from_wire import transactional_id_of
from ledgermq_broker.transactions.routing.routed import Routed, named_transaction, partition_in, partition_of
from ledgermq_broker.transactions.state.added.producers import Named
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_broker.transactions.state.wire import part_to_proto
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.names import check_group_name


class AddedRoutes(Routed):
    async def find_transaction_coordinator(
        self, request: pb.FindTransactionCoordinatorRequest
    ) -> pb.FindCoordinatorResponse:
        """Return the address of an id's coordinator, once it serves. Raises Unavailable."""
        transactional_id_of(request.transactional_id)
        topic = await self._topic.find_or_create()

        async def here(found: Coordinating) -> str:
            return self._address

        try:
            address = await self._at_coordinator(topic, request.transactional_id, here)
        except NotOwner as error:
            if not error.owner:
                raise
            address = error.owner
        return pb.FindCoordinatorResponse(address=address)

    async def add_to_transaction(self, request: pb.AddToTransactionRequest) -> pb.AddToTransactionResponse:
        name, named = request.transaction.transactional_id, named_producer(request.transaction)
        topic = await self._existing(name)
        lookup = self._metadata.lookup()
        places, results, failed = [], [], False
        for wanted in request.partitions:
            result = pb.AddedPartition()
            try:
                found, _ = await lookup.partition(wanted.topic, wanted.partition)
                places.append(PartitionId(found.id, wanted.partition))
            except LedgerMQError as error:
                result.error.CopyFrom(error_to_proto(error))
                failed = True
            results.append(result)
        if not failed:
            groups = [check_group_name(request.group)] if request.group else []
            await self._at_coordinator(topic, name, lambda found: found.added.add(name, named, places, groups))
        return pb.AddToTransactionResponse(results=results)

    async def join_transaction(self, request: pb.JoinTransactionRequest) -> pb.JoinTransactionResponse:
        """Make a bundle part of an open transaction. Only brokers may call this, where access rules are enforced."""
        name, named = request.transaction.transactional_id, named_producer(request.transaction)
        topic = await self._existing(name)
        place = None if request.group else PartitionId(request.topic_id, request.partition)
        bundle, group, adds = request.bundle, request.group, request.adds
        also, lookup = set[PartitionId](), self._metadata.lookup()
        for wanted in request.also:
            with suppress(LedgerMQError):  # its own batch gets the error
                found, _ = await lookup.partition(wanted.topic, wanted.partition)
                also.add(PartitionId(found.id, wanted.partition))
        joined = await self._at_coordinator(
            topic, name, lambda found: found.added.join(name, named, bundle, place, group, adds=adds, also=also)
        )
        return pb.JoinTransactionResponse(number=joined.number)

    async def count_staged(self, request: pb.CountStagedRequest) -> pb.CountStagedResponse:
        """Return what a transaction has staged in a bundle. Only brokers may call this, where access rules are
        enforced.
        """
        topic = await self._existing(request.transaction.transactional_id)
        transaction = named_transaction(request.transaction, topic)
        part = await self._terms.call(
            self._kind,
            topic,
            partition_in(topic, request.bundle),
            lambda found: found.count_staged(transaction, request.bundle, request.groups),
        )
        return pb.CountStagedResponse(part=part_to_proto(part))

    async def open_transaction(
        self,
        ref: pb.TransactionRef,
        bundle: int,
        place: PartitionId | None = None,
        group: str = "",
        *,
        adds: bool,
        also: Sequence[pb.TopicPartition] = (),
    ) -> Transaction:
        """Return the open transaction of the Kafka protocol to which a partition of this bundle, or a group, was added.
        `adds`: it is added if it was not, and `also`, too. The bundle is part of it then.

        Raises TransactionUnknown, TransactionFenced, NotOwner, Unavailable; InvalidRequest if it was not added.
        """
        name, named = ref.transactional_id, named_producer(ref)
        topic = await self._existing(name)
        here = await self.in_bundle(bundle)
        found = Transaction(name, partition_of(name, topic), named.producer_id, named.epoch, 1)
        number = here.open_number(named.producer_id, named.epoch, place, group)
        if not number:
            number = await here.peers.join(found, bundle, place, group, adds=adds, also=also)
            here.participant.by_records.note_open(named.producer_id, named.epoch, number)
        return found._replace(number=number)


def named_producer(ref: pb.TransactionRef) -> Named:
    """Return the producer that a call of the Kafka protocol names. Raises InvalidRequest."""
    transactional_id_of(ref.transactional_id)
    if len(ref.producer_id) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(ref.producer_id)}")
    return Named(ref.producer_id, ref.epoch)
