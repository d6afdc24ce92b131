"""Queue groups and transactions, for operators: what there is, and where it stands."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ledgermq.client.queues.admin import QueueDescription
from ledgermq.client.transactions.admin import TransactionDescription
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.resources.parameters import flag


class QueueMember(Struct, kw_only=True):
    member_id: str
    leased: int


class QueuePartition(Struct, kw_only=True):
    """All messages below `start` are finished; none from `end` on was delivered. `waiting`: for their next try."""

    topic: str
    partition: int
    start: int
    end: int
    high_watermark: int
    backlog: int
    leased: int
    waiting: int
    finished: int
    members: list[QueueMember]


class Queue(Struct, kw_only=True):
    group: str
    backlog: int
    leased: int
    partitions: list[QueuePartition]


class Queues(Struct, kw_only=True):
    queues: list[Queue]


class Transaction(Struct, kw_only=True):
    """The newest transaction of an id. `complete`: decided, and visible or dropped everywhere. `missing`: bundles
    where it is not; `trouble`: why. `changed_ms`: since the epoch.
    """

    transactional_id: str
    kind: str
    state: str
    epoch: int
    number: int
    complete: bool
    missing: list[int]
    trouble: str
    changed_ms: int
    timeout_ms: int


class Transactions(Struct, kw_only=True):
    """`unanswered`: partitions of `__transactions` whose owner has not answered; theirs are missing."""

    transactions: list[Transaction]
    unanswered: list[int]


async def list_queues(call: Call) -> Answer:
    found = await call.caller.client.queues.list()
    return Answer(msgspec.json.encode(Queues(queues=[_queue(each) for each in found])))


async def get_queue(call: Call) -> Answer:
    return Answer(msgspec.json.encode(_queue(await call.caller.client.queues.describe(call.names["group"]))))


def _queue(found: QueueDescription) -> Queue:
    partitions = [
        QueuePartition(
            topic=each.partition.topic,
            partition=each.partition.partition,
            start=each.start,
            end=each.end,
            high_watermark=each.high_watermark,
            backlog=each.backlog,
            leased=each.leased,
            waiting=each.waiting,
            finished=each.finished,
            members=[QueueMember(member_id=member.member_id, leased=member.leased) for member in each.members],
        )
        for each in found.partitions
    ]
    return Queue(group=found.group, backlog=found.backlog, leased=found.leased, partitions=partitions)


async def list_transactions(call: Call) -> Answer:
    found = await call.caller.client.transactions.list(open_only=not flag(call.query, "all"))
    listed = [_transaction(each) for each in found.transactions]
    return Answer(msgspec.json.encode(Transactions(transactions=listed, unanswered=sorted(found.unanswered))))


def _transaction(found: TransactionDescription) -> Transaction:
    return Transaction(
        transactional_id=found.transactional_id,
        kind=found.kind,
        state=found.state,
        epoch=found.epoch,
        number=found.number,
        complete=found.complete,
        missing=list(found.missing),
        trouble=found.trouble,
        changed_ms=found.changed_ms,
        timeout_ms=found.timeout_ms,
    )
