"""Answer InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn: transactions of Kafka clients
are ours, with the same coordinators, staging and rules.

    Kafka                                  here
    producer id, epoch from 0              a producer id in a Kafka form, epoch from 1
    partitions and groups of a             what was added to the open transaction (`AddToTransaction`)
      transaction
    EndTxn                                 EndTransaction, for which the coordinator counts
    Produce 12, TxnOffsetCommit 5,         the second protocol (KIP-890): what comes first adds its partition or group,
      EndTxn 5                               and the end returns the epoch of the next transaction

A client of the second protocol may go on in its epoch after it has aborted. So what only says that its transaction
is over gets TRANSACTION_ABORTABLE; a producer that another one has fenced still gets the codes that end it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.errors import (
    InvalidGroupName,
    InvalidRequest,
    LedgerMQError,
    TransactionAborted,
    TransactionFenced,
    Unauthenticated,
    Unauthorized,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import kafka_producer_id, producer_bytes
from ledgermq.protocol.status import error_from_proto
from ledgermq.sources import Sources
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.groups.committed import result_code, unfit
from ledgermq_broker.kafka.handlers.groups.membership import unsigned
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import (
    add_offsets_to_txn_response,
    add_partitions_to_txn_response,
    end_txn_response,
    init_producer_id_response,
    txn_offset_commit_response,
)
from ledgermq_broker.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    Api,
)

NONE = -1
_FENCED_FROM = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
"""Versions whose clients know PRODUCER_FENCED."""
ADDS_FROM, STAGED_ADDS_FROM, RENEWS_FROM = 12, 5, 5
"""Versions of Produce, TxnOffsetCommit and EndTxn with which clients speak the second protocol."""
ABORTABLE_FROM, STAGED_ABORTABLE_FROM = 11, 4
"""Versions of Produce and TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE."""


def answers(sources: Sources) -> Mapping[Api, Handler]:
    async def init(asked: Asked) -> init_producer_id_response.InitProducerIdResponse:
        if asked.message.transactional_id is None:  # nothing is stored: its first batch in a partition makes it known
            return init_producer_id_response.InitProducerIdResponse(producer_id=sources.random.getrandbits(63))
        return await init_transactional(asked)

    return {
        INIT_PRODUCER_ID: init,
        ADD_PARTITIONS_TO_TXN: add_partitions,
        ADD_OFFSETS_TO_TXN: add_offsets,
        TXN_OFFSET_COMMIT: commit_offsets,
        END_TXN: end,
    }


def transactional_id(name: str) -> str:
    """Return an id of a client as LedgerMQ has it. Raises InvalidRequest."""
    try:
        return inside(name)
    except InvalidGroupName:
        raise InvalidRequest(
            f"transactional id {name[:300]!r} is empty or too long: 249 letters, digits, '.', '_' and '-' are allowed,"
            " and fewer of other characters"
        ) from None


def transaction_ref(name: str, producer_id: int, epoch: int) -> pb.TransactionRef:
    """Return what names the open transaction of a producer. Raises InvalidRequest."""
    if producer_id < 0 or epoch < 0:
        raise InvalidRequest(f"producer id {producer_id} and epoch {epoch} are none that a producer has")
    return pb.TransactionRef(
        transactional_id=transactional_id(name), producer_id=producer_bytes(producer_id), epoch=epoch + 1
    )


def _code(api: Api, version: int, error: LedgerMQError) -> Code:
    """Return the code of a call at the coordinator. Raises the error itself if the connection has to end."""
    if isinstance(error, Unauthenticated):
        raise error
    if isinstance(error, Unauthorized):
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if isinstance(error, TransactionFenced) and version >= _FENCED_FROM[api]:
        return Code.PRODUCER_FENCED
    if api is END_TXN and version >= RENEWS_FROM and isinstance(error, TransactionAborted):
        return Code.TRANSACTION_ABORTABLE
    return code_of(error, Area.GROUP)


class Coded(LedgerMQError):
    """A batch of a transaction was refused with a code of Kafka's that no error of ours has."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.kafka_code = code


def staged_error(error: LedgerMQError, kafka_code: int, version: int) -> LedgerMQError:
    """Return the error of a batch that could not be staged. `version`: of Produce."""
    code = Code(kafka_code) if kafka_code in (Code.INVALID_TXN_STATE, Code.CONCURRENT_TRANSACTIONS) else Code.NONE
    code = _abortable(error, code, version >= ADDS_FROM, version >= ABORTABLE_FROM)
    return Coded(error.message, code) if code else error


def _abortable(error: LedgerMQError, code: Code, renews: bool, knows: bool) -> Code:
    """Return the code of what could not be staged: one after which the client aborts, if it may go on then. `renews`:
    it speaks the second protocol. `knows`: it knows that code.
    """
    is_over = renews and isinstance(error, TransactionAborted)
    return Code.TRANSACTION_ABORTABLE if is_over or (knows and code is Code.INVALID_TXN_STATE) else code


async def init_transactional(asked: Asked) -> init_producer_id_response.InitProducerIdResponse:
    message = asked.message
    try:
        known = message.producer_id >= 0 and message.producer_epoch >= 0
        answer = await asked.api.init_transactions(
            pb.InitTransactionsRequest(
                transactional_id=transactional_id(message.transactional_id),
                timeout_ms=max(0, message.transaction_timeout_ms),
                kafka=pb.KafkaProducer(
                    id=producer_bytes(message.producer_id) if known else b"",
                    epoch=message.producer_epoch + 1 if known else 0,
                ),
            )
        )
    except LedgerMQError as error:
        return init_producer_id_response.InitProducerIdResponse(
            error_code=_code(INIT_PRODUCER_ID, asked.version, error), producer_id=NONE, producer_epoch=NONE
        )
    producer_id = kafka_producer_id(answer.producer_id)
    assert producer_id is not None, "a producer of the Kafka protocol gets an id that it can say"
    return init_producer_id_response.InitProducerIdResponse(producer_id=producer_id, producer_epoch=answer.epoch - 1)


async def add_partitions(asked: Asked) -> add_partitions_to_txn_response.AddPartitionsToTxnResponse:
    message = asked.message
    places = [(topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions]
    try:
        codes = await _added(asked, places)
    except LedgerMQError as error:
        codes = [_code(ADD_PARTITIONS_TO_TXN, asked.version, error)] * len(places)
    left = iter(codes)
    return add_partitions_to_txn_response.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            add_partitions_to_txn_response.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    add_partitions_to_txn_response.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=next(left)
                    )
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


async def _added(asked: Asked, places: list[tuple[str, int]]) -> list[Code]:
    """Return the code of each partition: if any cannot be added, the others are OPERATION_NOT_ATTEMPTED."""
    message = asked.message
    answer = await asked.api.add_to_transaction(
        pb.AddToTransactionRequest(
            transaction=transaction_ref(
                message.v3_and_below_transactional_id,
                message.v3_and_below_producer_id,
                message.v3_and_below_producer_epoch,
            ),
            partitions=[pb.TopicPartition(topic=topic, partition=unsigned(number)) for topic, number in places],
        )
    )
    errors = [error_from_proto(result.error) if result.HasField("error") else None for result in answer.results]
    if not any(errors):
        return [Code.NONE] * len(places)
    return [code_of(error, Area.FETCH) if error is not None else Code.OPERATION_NOT_ATTEMPTED for error in errors]


async def add_offsets(asked: Asked) -> add_offsets_to_txn_response.AddOffsetsToTxnResponse:
    message = asked.message
    try:
        ref = transaction_ref(message.transactional_id, message.producer_id, message.producer_epoch)
        await asked.api.add_to_transaction(pb.AddToTransactionRequest(transaction=ref, group=inside(message.group_id)))
    except Unauthorized:  # the producer has its id, so this is about the group
        return add_offsets_to_txn_response.AddOffsetsToTxnResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    except LedgerMQError as error:
        code = _code(ADD_OFFSETS_TO_TXN, asked.version, error)
        return add_offsets_to_txn_response.AddOffsetsToTxnResponse(error_code=code)
    return add_offsets_to_txn_response.AddOffsetsToTxnResponse()


async def commit_offsets(asked: Asked) -> txn_offset_commit_response.TxnOffsetCommitResponse:
    """Stage offsets: all of them, or none."""
    message = asked.message
    places = [(topic.name, one) for topic in message.topics for one in topic.partitions]
    codes = [unfit(one) for _, one in places]
    if places and not any(codes):
        try:
            answer = await asked.api.stage_offsets(_stage_request(message, places, asked.version))
            codes = [result_code(result) for result in answer.results]
        except LedgerMQError as error:
            if isinstance(error, Unauthenticated):
                raise
            renews, knows = asked.version >= STAGED_ADDS_FROM, asked.version >= STAGED_ABORTABLE_FROM
            code = _abortable(error, code_of(error, Area.GROUP), renews, knows)
            codes = [Code.ILLEGAL_GENERATION if code is Code.STALE_MEMBER_EPOCH else code] * len(places)  # as Kafka
    if failed := [code for code in codes if code]:
        codes = [code or failed[0] for code in codes]  # nothing is staged
    left = iter(codes)
    return txn_offset_commit_response.TxnOffsetCommitResponse(
        topics=[
            txn_offset_commit_response.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    txn_offset_commit_response.TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=next(left)
                    )
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _stage_request(message: Any, places: list[tuple[str, Any]], version: int) -> pb.StageOffsetsRequest:
    return pb.StageOffsetsRequest(
        transaction=transaction_ref(message.transactional_id, message.producer_id, message.producer_epoch),
        group=inside(message.group_id),
        member_id=message.member_id,
        added=pb.ClassicCommitter(
            instance_id=message.group_instance_id or "",
            generation=unsigned(message.generation_id),
            outside=message.generation_id < 0 and not message.member_id,
            adds=version >= STAGED_ADDS_FROM,
        ),
        commits=[
            pb.OffsetCommit(
                topic=topic,
                partition=one.partition_index,
                offset=one.committed_offset,
                metadata=one.committed_metadata or "",
            )
            for topic, one in places
        ],
    )


async def end(asked: Asked) -> end_txn_response.EndTxnResponse:
    message, renews = asked.message, asked.version >= RENEWS_FROM
    try:
        ended = await asked.api.end_transaction(
            pb.EndTransactionRequest(
                transaction=transaction_ref(message.transactional_id, message.producer_id, message.producer_epoch),
                outcome=pb.COMMITTED if message.committed else pb.ABORTED,
                added=True,
                renews=renews,
            )
        )
    except LedgerMQError as error:
        return end_txn_response.EndTxnResponse(error_code=_code(END_TXN, asked.version, error))
    producer_id = kafka_producer_id(ended.producer_id) if renews else None
    if producer_id is None:  # the first protocol, or a broker of an earlier release: the epoch stays
        return end_txn_response.EndTxnResponse()
    return end_txn_response.EndTxnResponse(producer_id=producer_id, producer_epoch=ended.epoch - 1)
