"""Write records: POST /v1/topics/{topic}/records.

200 is answered only if all records are stored. If storing fails for some, the answer is the problem of the first one,
with `results` for each: what was stored, and what was not.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from ledgermq.client.connection.routing import RECORD_BYTES_MAX_DEFAULT
from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.messages.record import Record
from ledgermq.client.producing.delivery import SendResult
from ledgermq.errors import InvalidRecord, LedgerMQError, MessageTooLarge, UnknownPartition
from ledgermq_gateway.callers import Caller
from ledgermq_gateway.http.call import ARROW, JSON, NDJSON, Answer, Call
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.bodies import (
    RESERVED,
    record_of_bytes,
    records_of_json,
    records_of_lines,
    table_of_arrow,
)
from ledgermq_gateway.records.reading import READ_BYTES, size_of

KEY_HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,200}\Z")
_HASH_BYTES = 16
FREE_S = 0.1
"""So much later than `delivery_timeout_ms` says a call may end."""
COMPARED_PARTITIONS_MAX = 16
"""Partitions in which a repetition is compared with what was stored: each takes a call."""
Pairs = Sequence[tuple[str, bytes | None]]


class Stored(Struct, omit_defaults=True, kw_only=True):
    """Where a record is stored. `offset`: none yet of a delayed record, which has a `handle` to recall it. `duplicate`:
    a record with its id was stored before, at this offset.
    """

    partition: int
    offset: int | None = None
    handle: str | None = None
    duplicate: bool = False


class StoredRun(Struct, kw_only=True):
    """Records of an Arrow body that follow each other in one partition."""

    partition: int
    offset: int
    count: int


class StoredRecords(Struct, omit_defaults=True, kw_only=True):
    """`results`: of each record, in order; `runs` instead of it for an Arrow body."""

    results: list[Stored] | None = None
    runs: list[StoredRun] | None = None


async def post_records(call: Call) -> Answer:
    topic = call.names["topic"]
    until_s = asyncio.get_running_loop().time() + call.service.settings.delivery_timeout_ms / 1000
    described = await call.caller.topic(topic)
    if call.content_type == ARROW:
        return await _post_arrow(call, topic, until_s)
    now_us, most = call.service.sources.now_us(), call.service.settings.records_max
    try:
        if call.content_type == JSON:
            records = records_of_json(call.body, now_us, most)
        elif call.content_type == NDJSON:
            records = records_of_lines(call.body, now_us, most)
        else:
            records = [record_of_bytes(call.body, call.headers, now_us)]
    except InvalidRecord as error:
        raise problem_of(error) from None
    described = await check_partitions(call.caller, described, records)
    check_sizes(described, enumerate(records))
    keyed = KEY_HEADER in call.headers
    if keyed:
        records = _with_ids(call, described, records)
    return await _store(call, topic, records, until_s, keyed=keyed)


async def check_partitions(caller: Caller, described: TopicDescription, records: Sequence[Record]) -> TopicDescription:
    """Raise UnknownPartition for a record that names one that the topic does not have; it may have grown meanwhile."""
    highest = max((record.partition for record in records if record.partition is not None), default=-1)
    if highest >= len(described.partitions):
        described = await caller.topic(described.name, anew=True)
        if highest >= len(described.partitions):
            raise UnknownPartition(
                f"topic {described.name!r} has partitions 0 to {len(described.partitions) - 1}, not {highest}"
            )
    return described


def check_sizes(described: TopicDescription, records: Iterable[tuple[int, Record]]) -> None:
    """Raise MessageTooLarge, before any record is sent. `records`: with their numbers in the request."""
    given = described.settings.get("max.message.bytes", "")
    most = int(given) if given.isdecimal() else RECORD_BYTES_MAX_DEFAULT
    for number, record in records:
        size = len(record.value or b"") + len(record.key or b"")
        for name, value in cast(Pairs, record.headers or ()):
            size += len(name.encode()) + len(value or b"")
        if size > most:
            raise MessageTooLarge(
                f"record {number} has {size} bytes, topic {described.name!r} takes {most} (max.message.bytes)"
            )


def _with_ids(call: Call, described: TopicDescription, records: Sequence[Record]) -> list[Record]:
    """Return the records with ids made of the principal and the key, so that keys of two principals never meet."""
    hashed = key_hash(call)
    if described.settings.get("dedup.window.ms", "0") == "0":
        raise Problem(
            "IDEMPOTENCY_NOT_AVAILABLE",
            f"topic {described.name!r} recognizes no repetitions: set its dedup.window.ms, or leave the key out",
        )
    if any(record.delay is not None or record.deliver_at is not None for record in records):
        raise Problem("IDEMPOTENCY_NOT_AVAILABLE", "delayed records are not recognized when they are sent again")
    if any(record.id is not None for record in records):
        raise Problem("INVALID_REQUEST", "give the request a key, or records an id, not both")
    call.service.key_rates.spend(call.caller.principal, len(records), asyncio.get_running_loop().time())
    return [record._replace(id=f"h.{hashed}.{number}") for number, record in enumerate(records)]


def key_hash(call: Call) -> str:
    """Return what stands for the principal and the Idempotency-Key of a call: 22 letters, digits, "-" and "_". Raises
    Problem (400).
    """
    key, principal = call.headers[KEY_HEADER].strip('"'), call.caller.principal.encode()
    if not _KEY.match(key):
        raise Problem("INVALID_REQUEST", "an Idempotency-Key has 1 to 200 visible ASCII characters")
    digest = hashlib.sha256(b"%d:%s%s" % (len(principal), principal, key.encode())).digest()[:_HASH_BYTES]
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _left_s(call: Call, until_s: float) -> float | None:
    """Return how much time a call has left; None: as much as the producer gives each record. A time that records have
    for themselves keeps them apart from others.
    """
    left_s = until_s - asyncio.get_running_loop().time()
    full_s = call.service.settings.delivery_timeout_ms / 1000
    return None if full_s - left_s < FREE_S else max(0.0, left_s)


async def _store(call: Call, topic: str, records: Sequence[Record], until_s: float, *, keyed: bool) -> Answer:
    producer, timeout_s = call.caller.producer, _left_s(call, until_s)
    results: Sequence[SendResult]
    if len(records) == 1:  # a call for many takes a quarter more time for one record
        results = [await producer.send(topic, *records[0], timeout=timeout_s)]
    else:
        results = await (await producer.send_many(topic, records, timeout=timeout_s))
    failed = next((result for result in results if result.error is not None), None)
    if failed is not None:
        assert failed.error is not None
        call.caller.forget(topic)
        raise problem_of(failed.error, {"results": [_shown(result) for result in results]})
    if keyed and await _is_another_body(call, topic, records, results):
        raise Problem(
            "IDEMPOTENCY_KEY_REUSED",
            "another request with this key has stored other records; of this one only those results are stored that are"
            " no duplicates: give each body another key",
            more={"results": [_shown(result) for result in results]},
        )
    headers: tuple[tuple[str, str], ...] = ()
    if keyed and all(result.duplicate for result in results):
        headers = (("Idempotent-Replayed", "true"),)
    return Answer(msgspec.json.encode(StoredRecords(results=[_stored(result) for result in results])), headers=headers)


def _stored(result: SendResult) -> Stored:
    return Stored(partition=result.partition, offset=result.offset, handle=result.handle, duplicate=result.duplicate)


def _shown(result: SendResult) -> Any:
    if result.error is None:
        return _stored(result)
    return {"error": {"code": problem_of(result.error).code, "detail": result.error.message}}


async def _post_arrow(call: Call, topic: str, until_s: float) -> Answer:
    if KEY_HEADER in call.headers:
        raise Problem("IDEMPOTENCY_NOT_AVAILABLE", "an Arrow body takes no Idempotency-Key: send JSON")
    try:
        table = table_of_arrow(call.body, call.service.settings.records_max)
        queued = await call.caller.producer.send_batch(topic, table, timeout=_left_s(call, until_s))
        results = await queued
    except LedgerMQError:
        call.caller.forget(topic)
        raise
    runs = [StoredRun(partition=run.partition, offset=run.base_offset or 0, count=run.record_count) for run in results]
    return Answer(msgspec.json.encode(StoredRecords(runs=runs)))


# A key with another body: what it stored is read, a page of a partition, so nothing more is kept for it in the cluster.


async def _is_another_body(call: Call, topic: str, records: Sequence[Record], results: Sequence[SendResult]) -> bool:
    """Return whether a record that was stored before under the same key is not the one that came again. False also if
    that is not known: the caller may not read it, or it is no longer there.
    """
    places: dict[int, dict[int, Record]] = {}
    for record, result in zip(records, results, strict=True):
        if result.duplicate and result.offset is not None:
            places.setdefault(result.partition, {})[result.offset] = record
    if not places or not await _may_read(call, topic):
        return False
    for partition in sorted(places)[:COMPARED_PARTITIONS_MAX]:
        if await _differ(call, topic, partition, places[partition]):
            return True
    return False


async def _may_read(call: Call, topic: str) -> bool:
    """Ask first: a read that is refused would count as an attack in the audit log."""
    try:
        return (await call.caller.client.access.test("consume", topic)).allowed
    except LedgerMQError:
        return False


async def _differ(call: Call, topic: str, partition: int, wanted: Mapping[int, Record]) -> bool:
    first = min(wanted)
    call.share.take(READ_BYTES)
    try:
        page = await call.caller.client.read(
            topic,
            partition,
            {partition: first},
            records_max=min(max(wanted) - first + 1, call.service.settings.records_max),
            bytes_max=call.service.settings.page_bytes_max,
        )
    except LedgerMQError:
        return False
    call.share.take(2 * sum(map(size_of, page.messages)))
    return any(message.offset in wanted and not _is_same(wanted[message.offset], message) for message in page.messages)


def _is_same(record: Record, stored: Message) -> bool:
    """Return whether a stored record has what the body says. Times are left out: the gateway may have drawn them."""
    given = cast(Sequence[tuple[str, bytes | None]], record.headers or ())
    headers = [(name, value) for name, value in stored.headers if not name.startswith(RESERVED)]
    return (record.value, record.key, record.tag, list(given)) == (stored.value, stored.key, stored.tag, headers)
