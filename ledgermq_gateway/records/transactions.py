"""Write records of any topics, all of them or none, in one request: POST /v1/transactions.

The whole body is checked before anything is sent. The transactional id is `AS.k.` with a hash of the principal and the
Idempotency-Key, or `AS.r.` with a random part: rules name `AS.*`. The cluster recognizes a repeated key, so it may be
sent again to any gateway, whatever has become of the request before; with another body it is refused. Offsets of
groups without members are committed with the records.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ledgermq.client.messages.record import Record
from ledgermq.client.transactions.sending.group_offsets import OFFSETS_MAX, GroupOffset
from ledgermq.errors import InvalidRequest, TransactionAborted, TransactionFenced, TransactionIdReused
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import RETRY_AFTER_MS, Problem
from ledgermq_gateway.records.bodies import RecordIn, converted, decode
from ledgermq_gateway.records.writing import KEY_HEADER, check_partitions, check_sizes, key_hash
from ledgermq_gateway.resources.groups import Offset, OffsetIn

OWNER_PATTERN = "^[A-Za-z0-9._-]{1,200}$"


class RecordOfTransaction(RecordIn, forbid_unknown_fields=True, kw_only=True):
    """A record, and the topic for it. It takes no `id`: the key of the request is for that."""

    topic: str


class OffsetOfGroup(OffsetIn, forbid_unknown_fields=True, kw_only=True):
    """The next offset to read, of a group without members. `expect`: the offset that the group had committed when the
    records were read, null if none; the request is refused if it has another one by now. Not given: it may have any
    that is not higher.
    """

    group: Annotated[str, Meta(min_length=1)]
    expect: Offset | UnsetType | None = UNSET


class TransactionIn(Struct, forbid_unknown_fields=True, kw_only=True, rename={"owner": "as"}):
    """Records that are written together, and offsets that are committed with them. `as`: a name under which the caller
    may write transactions: its rule is `transaction AS.*`.
    """

    owner: Annotated[str, Meta(pattern=OWNER_PATTERN)]
    records: list[RecordOfTransaction] = []
    offsets: Annotated[list[OffsetOfGroup], Meta(max_length=OFFSETS_MAX)] = []


class TransactionOut(Struct, kw_only=True):
    """`transaction`: its name in the cluster; empty if it was `replayed`: committed by an earlier request with the same
    key. Readers see the records a moment later, which is why there are no offsets.
    """

    state: Literal["committed"]
    transaction: str
    replayed: bool


_transaction_in = msgspec.json.Decoder(TransactionIn)


async def post_transaction(call: Call) -> Answer:
    given: TransactionIn = decode(_transaction_in, call.body)
    if not given.records and not given.offsets:
        raise Problem("INVALID_REQUEST", "a transaction has a record, or an offset of a group")
    records = converted(given.records, call.service.sources.now_us(), call.service.settings.records_max)
    by_topic: dict[str, list[tuple[int, Record]]] = {}
    for number, (one, record) in enumerate(zip(given.records, records, strict=True)):
        if record.id is not None:
            raise Problem("INVALID_REQUEST", f"record {number}: records of transactions take no id; give a key instead")
        by_topic.setdefault(one.topic, []).append((number, record))
    for topic, numbered in by_topic.items():
        described = await call.caller.topic(topic)
        described = await check_partitions(call.caller, described, [record for _, record in numbered])
        check_sizes(described, numbered)
    offsets = [await _group_offset(call, each) for each in given.offsets]
    keyed = KEY_HEADER in call.headers
    transactional_id = f"{given.owner}.k.{key_hash(call)}" if keyed else f"{given.owner}.r.{_drawn(call)}"
    call.service.transaction_rates.spend(call.caller.principal, 1, asyncio.get_running_loop().time())
    settings = call.service.settings
    try:
        sent = await call.caller.client.transactions.send_once(
            transactional_id,
            [(topic, record) for topic, numbered in by_topic.items() for _, record in numbered],
            offsets=offsets,
            open_max=settings.delivery_timeout_ms / 1000,
            kept=settings.transaction_kept_ms / 1000,
            auto_create=False,
        )
    except TransactionIdReused:
        raise Problem(
            "IDEMPOTENCY_KEY_REUSED",
            "another request with this key, and with another body, was committed; this one wrote nothing: give it"
            " another key",
        ) from None
    except TransactionFenced as error:
        raise Problem(
            "TRANSACTION_RUNNING",
            f"another request with this key has taken the place of this one, which wrote nothing ({error.message})",
            retry_after_ms=RETRY_AFTER_MS,
        ) from None
    except TransactionAborted as error:
        raise Problem(error.code, error.message, status=409, retry_after_ms=RETRY_AFTER_MS) from None
    except InvalidRequest:
        for topic in by_topic:
            call.caller.forget(topic)
        raise
    out = TransactionOut(state="committed", transaction=sent.name, replayed=sent.repeated)
    headers = (("Idempotent-Replayed", "true"),) if sent.repeated else ()
    return Answer(msgspec.json.encode(out), headers=headers)


async def _group_offset(call: Call, given: OffsetOfGroup) -> GroupOffset:
    topic = await call.caller.topic(given.topic)
    if given.topic_id not in (None, topic.topic_id):
        raise Problem("OTHER_TOPIC", f"topic {topic.name!r} was made again: it has the id {topic.topic_id}")
    expect = None if given.expect is UNSET else given.expect or 0
    return GroupOffset(given.group, given.topic, given.partition, given.offset, expect)


def _drawn(call: Call) -> str:
    return call.service.sources.new_id().hex()
