"""A transaction of one call, which may be repeated: it is committed at most once under its transactional id.

    init ──> what was decided last under the id?
               a commit of the same content ──> nothing is sent: it is a repetition
               a commit of other content ─────> TransactionIdReused: nothing is sent
               nothing, or aborted ───────────> stage offsets of groups, send all records, commit

Each attempt begins an epoch, which fences the attempts before it. So an attempt whose commit arrives later has no
effect, and what the answer to `init` says of the epochs before is final. The cluster keeps the id for a time after its
last use; then it counts as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.record import Record, readable_again
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.client.transactions.sending.content import content_of
from ledgermq.client.transactions.sending.group_offsets import (
    GroupEntries,
    GroupOffset,
    checked_offsets,
    read_groups,
    stage_groups,
)
from ledgermq.client.transactions.sending.lane import Lane
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.errors import InvalidRequest, TransactionAborted, TransactionOutcomeUnknown
from ledgermq.protocol import ledgermq_pb2 as pb

COMMITTED = (pb.COMMITTED, pb.COMMITTED_BY_OPERATOR)

TopicRecord = tuple[str, "Record | Any"]
"""A topic, and a record for it, as `send_many` takes it."""


@dataclass(frozen=True, slots=True)
class SentOnce:
    """A committed transaction. `repeated`: it was committed by an earlier call, and this one has sent nothing. `name`:
    `ID:EPOCH:NUMBER`; "" if it is repeated.
    """

    repeated: bool
    name: str = ""


async def send_once(
    context: ClientContext,
    decisions: Decisions,
    records: Iterable[TopicRecord],
    timeout_ms: int,
    settings: ProducerSettings,
    kept_ms: int,
    offsets: Sequence[GroupOffset] = (),
) -> SentOnce:
    """See `TransactionClient.send_once`."""
    by_topic: dict[str, list[Record]] = {}
    given = [(topic, _record(each)) for topic, each in records]
    for topic, record in given:
        by_topic.setdefault(topic, []).append(record)
    wanted = checked_offsets(offsets)
    if not by_topic and not wanted:
        raise InvalidRequest("a transaction needs a record, or an offset of a group: give at least one")
    content = content_of(given, wanted, settings)
    identity = await decisions.init(timeout_ms, context.connections.deadline(), kept_ms=kept_ms, content=content)
    if identity.kept_ms != kept_ms:
        raise InvalidRequest(
            "the brokers do not know how to send a transaction once, because their release is older: upgrade them"
        )
    if identity.former in COMMITTED:
        return SentOnce(True)
    read = await read_groups(context.connections, wanted, context.connections.deadline())
    lane = Lane(context, settings, decisions, identity)
    transaction: Transaction[Any] = Transaction(lane)
    try:
        try:
            async with transaction:
                if read:
                    await _stage(context, lane, read)
                for topic, some in by_topic.items():
                    await transaction.send_many(topic, some)
        finally:
            await lane.close()  # which asks for an outcome that is unknown
    except TransactionOutcomeUnknown:
        if transaction.state == "aborted":
            raise TransactionAborted(f"{_name(transaction, decisions)} is aborted: repeat the call") from None
        if transaction.state != "committed":
            raise
    return SentOnce(False, _name(transaction, decisions))


async def _stage(context: ClientContext, lane: Lane, read: Sequence[GroupEntries]) -> None:
    """Stage offsets before any record: if they are refused, no record was sent in vain."""
    lane.staging.used = True
    lane.staging.note_groups(await stage_groups(lane.staging.reference, read, context.connections.deadline()))


def _record(given: Record | Any) -> Record:
    """Return a record whose headers may be read twice."""
    if not isinstance(given, Record):
        return Record(given)
    return given._replace(headers=readable_again(given.headers))


def _name(transaction: Transaction[Any], decisions: Decisions) -> str:
    return f"{decisions.transactional_id}:{transaction.epoch}:{transaction.number}"
