"""Write records of any topics, all of them or none, in one request: POST /v1/transactions.

The whole body is checked before anything is sent. The transactional id is `AS.k.` with a hash of the principal and the
Idempotency-Key, or `AS.r.` with a random part: rules name `AS.*`. The cluster recognizes a repeated key, so it may be
sent again to any gateway, whatever has become of the request before.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.messages.record import Record
from ledgermq.errors import InvalidRequest, TransactionAborted, TransactionFenced
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import RETRY_AFTER_MS, Problem
from ledgermq_gateway.records.bodies import RecordIn, converted, decode
from ledgermq_gateway.records.writing import KEY_HEADER, check_partitions, check_sizes, key_hash

OWNER_PATTERN = "^[A-Za-z0-9._-]{1,200}$"


class RecordOfTransaction(RecordIn, forbid_unknown_fields=True, kw_only=True):
    """A record, and the topic for it. It takes no `id`: the key of the request is for that."""

    topic: str


class TransactionIn(Struct, forbid_unknown_fields=True, kw_only=True, rename={"owner": "as"}):
    """Records that are written together. `as`: a name under which the caller may write transactions: its rule is
    `transaction AS.*`.
    """

    owner: Annotated[str, Meta(pattern=OWNER_PATTERN)]
    records: Annotated[list[RecordOfTransaction], Meta(min_length=1)]


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
    keyed = KEY_HEADER in call.headers
    transactional_id = f"{given.owner}.k.{key_hash(call)}" if keyed else f"{given.owner}.r.{_drawn(call)}"
    call.service.transaction_rates.spend(call.caller.principal, 1, asyncio.get_running_loop().time())
    settings = call.service.settings
    try:
        sent = await call.caller.client.transactions.send_once(
            transactional_id,
            [(topic, record) for topic, numbered in by_topic.items() for _, record in numbered],
            open_max=settings.delivery_timeout_ms / 1000,
            kept=settings.transaction_kept_ms / 1000,
            auto_create=False,
        )
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


def _drawn(call: Call) -> str:
    return call.service.sources.new_id().hex()
