"""Translate between the types of this package and the messages of the protocol."""

from __future__ import annotations

from typing import cast

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq_broker.transactions.state.types import Part, State, Stream, Transaction


def transaction_to_proto(transaction: Transaction) -> pb.TransactionRef:
    return pb.TransactionRef(
        transactional_id=transaction.transactional_id,
        coordinator=transaction.coordinator,
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        number=transaction.number,
    )


def shown_transaction(transaction: Transaction) -> pb.TransactionRef:
    """As `transaction_to_proto`, for people and other principals: the producer id is only shown."""
    return transaction_to_proto(transaction._replace(producer_id=shown_producer_id(transaction.producer_id)))


def transaction_from_proto(message: pb.TransactionRef) -> Transaction:
    return Transaction(
        message.transactional_id, message.coordinator, message.producer_id, message.epoch, message.number
    )


def part_to_proto(part: Part) -> pb.TransactionPart:
    return pb.TransactionPart(
        bundle=part.bundle,
        counts=[
            pb.StagedCount(branch=stream.branch, topic_id=stream.topic_id, partition=stream.partition, batches=batches)
            for stream, batches in sorted(part.counts.items())
        ],
        groups=part.groups,
    )


def part_from_proto(message: pb.TransactionPart) -> Part:
    """Raises InvalidRequest if one stream is counted twice."""
    counts: dict[Stream, int] = {}
    for count in message.counts:
        stream = Stream(count.branch, count.topic_id, count.partition)
        if stream in counts:
            raise InvalidRequest(
                f"partition {count.topic_id}/{count.partition} of branch {count.branch.hex() or 'none'} is counted "
                f"twice in bundle {message.bundle}; name each once"
            )
        counts[stream] = count.batches
    return Part(message.bundle, counts, tuple(message.groups))


def state_to_proto(state: State) -> pb.TransactionState:
    return cast(pb.TransactionState, int(state))


def state_from_proto(number: int) -> State:
    """Raises InvalidRequest."""
    try:
        return State(number)
    except ValueError:
        raise InvalidRequest(f"state {number} of a transaction is unknown") from None
