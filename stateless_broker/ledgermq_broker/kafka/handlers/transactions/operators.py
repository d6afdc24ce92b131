"""Answer ListTransactions and DescribeTransactions, for tools.

Each broker lists the transactional ids that it coordinates, and tools ask all brokers. A producer id is a secret of
its producer, so these answers have a number made from its shown form.

    Kafka's state                    here
    Ongoing                          something was added to it, or a bundle has asked about it; or it is prepared
    PrepareCommit, PrepareAbort      it is decided, and not complete in all its bundles
    CompleteCommit, CompleteAbort    it is complete
    Empty                            no transaction of the present epoch has begun
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    TransactionUnknown,
    Unauthenticated,
    UnknownPartition,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.naming.producer_ids import shown_number
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, all_here
from ledgermq_broker.kafka.handlers.groups.names import outside
from ledgermq_broker.kafka.handlers.transactions.producers import transactional_id
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import describe_transactions_response as described
from ledgermq_broker.kafka.wire.generated import list_transactions_response as listed
from ledgermq_broker.kafka.wire.messages import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, Api

EMPTY, ONGOING = "Empty", "Ongoing"
_COMMITS = (pb.COMMITTED, pb.COMMITTED_BY_OPERATOR)
KAFKA_STATES = frozenset(
    (EMPTY, ONGOING, "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence")
)
EPOCH_MAX = 2**15 - 1


def answers(now_us: Callable[[], int]) -> Mapping[Api, Handler]:
    async def list_transactions(asked: Asked) -> listed.ListTransactionsResponse:
        return await _list(asked, now_us() // 1000)

    return {LIST_TRANSACTIONS: list_transactions, DESCRIBE_TRANSACTIONS: _describe}


async def _list(asked: Asked, now_ms: int) -> listed.ListTransactionsResponse:
    message = asked.message
    states, producers = set(message.state_filters), set(message.producer_id_filters)
    unknown = sorted(states - KAFKA_STATES)
    try:
        infos = await all_here(lambda partition: _infos_of(asked.api, partition))
    except LedgerMQError as error:
        if isinstance(error, Unauthenticated):
            raise
        return listed.ListTransactionsResponse(error_code=code_of(error, Area.GROUP))
    found = [
        listed.TransactionState(
            transactional_id=outside(info.transaction.transactional_id),
            producer_id=shown_number(info.transaction.producer_id),
            transaction_state=_state(info),
        )
        for info in infos
        if message.duration_filter < 0 or (_state(info) != EMPTY and now_ms - info.changed_ms > message.duration_filter)
    ]
    return listed.ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            one
            for one in found
            if (not states or one.transaction_state in states) and (not producers or one.producer_id in producers)
        ],
    )


async def _infos_of(api: BrokerApi, partition: int) -> Sequence[pb.TransactionInfo] | None:
    """Return the ids of a partition, none if another broker coordinates them; None: there is no such partition."""
    try:
        answer = await api.list_transactions(pb.ListTransactionsRequest(partition=partition))
    except UnknownPartition:
        return None
    except NotOwner:
        return []
    return list(answer.transactions) if answer.partitions else None


def _state(info: pb.TransactionInfo) -> str:
    if info.state in (pb.UNDECIDED, pb.PREPARED):
        return ONGOING if info.transaction.number else EMPTY
    how = "Complete" if info.complete else "Prepare"
    return f"{how}Commit" if info.state in _COMMITS else f"{how}Abort"


async def _describe(asked: Asked) -> described.DescribeTransactionsResponse:
    return described.DescribeTransactionsResponse(
        transaction_states=[await _described(asked.api, name) for name in asked.message.transactional_ids]
    )


async def _described(api: BrokerApi, name: str) -> described.TransactionState:
    found = described.TransactionState(transactional_id=name)
    try:
        answer = await api.describe_transaction(pb.DescribeTransactionRequest(transactional_id=transactional_id(name)))
    except LedgerMQError as error:
        found.error_code = _code(error)
        return found
    info = answer.transaction
    found.transaction_state = _state(info)
    found.transaction_timeout_ms = info.timeout_ms
    found.transaction_start_time_ms = info.changed_ms if found.transaction_state == ONGOING else -1
    found.producer_id = shown_number(info.transaction.producer_id)
    found.producer_epoch = min(max(0, info.transaction.epoch - 1), EPOCH_MAX)
    by_topic: dict[str, list[int]] = {}
    for place in answer.added:
        by_topic.setdefault(place.topic, []).append(place.partition)
    found.topics = [described.TopicData(topic=topic, partitions=numbers) for topic, numbers in sorted(by_topic.items())]
    return found


def _code(error: LedgerMQError) -> Code:
    """Return the code of one id. Raises the error itself if the connection has to end."""
    if isinstance(error, Unauthenticated):
        raise error
    if isinstance(error, TransactionUnknown):
        return Code.TRANSACTIONAL_ID_NOT_FOUND
    if isinstance(error, InvalidRequest):
        return Code.INVALID_REQUEST
    code = code_of(error, Area.GROUP)
    return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if code == Code.GROUP_AUTHORIZATION_FAILED else code
