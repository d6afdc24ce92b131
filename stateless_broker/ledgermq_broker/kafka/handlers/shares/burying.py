"""Put messages that were delivered too often, or that a member rejects, into the dead letters of their group, as our
own members do (`ledgermq.client.queues.dead_letters`): the copy is stored first, then the message is finished.

the topic        `<group>.dlq`, made at the first dead letter by the right of the caller; it takes any size. One that
                 is there is of the group if its first record is
the copy         its partition is that of the message; this broker hands it to the owner
the caller may   finished without a copy, as in Kafka 4.1; the log says so once for a connection. The same where no
not write it     topic can have the name, where it is the message's topic, where the copy is larger than the topic can
                 take (or than the caller may let it take), and where the message cannot be read
all else         the message comes again after `REFUSED_PAUSE_MS`, however often
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.client.consuming.message import Message, MessageHeaders, messages_of
from ledgermq.client.groups.retries.retry_creation import RECORD_BYTES_MAX, check_first, settings_for_failed, takes
from ledgermq.client.groups.retry_topics import Failures, copy_of, dead_letter_topic, origin_of
from ledgermq.client.messages.expiry import Expiry, TopicTtl
from ledgermq.client.messages.record import Outgoing
from ledgermq.client.queues.dead_letters import REFUSED_PAUSE_MS
from ledgermq.errors import (
    DataDamaged,
    InvalidConfig,
    InvalidRecord,
    InvalidTopicName,
    LedgerMQError,
    MessageTooLarge,
    TopicExists,
    Unauthenticated,
    Unauthorized,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE
from ledgermq.protocol.batches.records import SCHEMA, largest_record_bytes
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import named_topics
from ledgermq_broker.kafka.wire.answers import decoded
from ledgermq_broker.logs import get_logger
from ledgermq_broker.paths.values import Value, produce_frame
from ledgermq_ledger import keys

COPIES_AT_ONCE = 8
OWNERS_AT_ONCE = 8
PARTITIONS_MAX = 1000
"""In one call for their first records."""
KEPT_MAX = 1000
"""Dead-letter topics that one connection remembers, and groups of which its log has said something; the oldest are
forgotten.
"""
TOO_LATE = "it was not stored in time"
LAST_WORDS = "its last delivery was not answered"
"""As our own members say of such a message."""

log = get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A", pb.TopicInfo, pb.OffsetResult, pb.FetchedPartition, pb.ProduceResult)
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
Dead = tuple[int, int, Message | DataDamaged]
"""An offset, the number of deliveries, and the message; the error if it cannot be read."""


class NoLetters(InvalidConfig):
    """A group can have no dead letters of a topic, or not this one; that does not pass with time."""


FINAL = (NoLetters, InvalidTopicName, Unauthorized)
"""After these a message is finished without a copy. All else may pass: an outage, a quota, a setting of the topic."""
OF_ONE = (MessageTooLarge, InvalidRecord)
"""The other messages may be stored nevertheless."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Messages of one partition that are dead. `part`: what was leased of it. `payload`: the bytes of each of its
    batches.
    """

    part: pb.LeasedPartition
    payload: Sequence[Buffer]
    ranges: list[pb.LeasedRange]


@dataclass(frozen=True, slots=True)
class _Letters:
    """A dead-letter topic, by its `id`: one of this name that is made later may be another's. `ttl`: of the topic whose
    messages it gets. `may_alter`: False if the caller may not let it take larger messages.
    """

    id: int
    name: str
    partitions: int
    ttl: TopicTtl
    may_alter: bool


class Burying:
    """The dead letters of the groups that one connection works for."""

    def __init__(self, brokers: Brokers, sources: Sources, run_blocking: RunBlocking) -> None:
        self._brokers = brokers
        self._sources = sources
        self._run_blocking = run_blocking
        self._letters: dict[tuple[str, str], _Letters] = {}
        self._finding = asyncio.Lock()
        self._told: dict[str, None] = {}

    async def bury(
        self, api: BrokerApi, group: str, failed: Failed, until_s: float, text: str = LAST_WORDS
    ) -> tuple[list[pb.SharedSpan], str]:
        """Store the copies, with the text as their error. Return what is to be said about each message, and why some
        come again, "" if none does. `until_s`: of the loop; what is not stored by then comes again. Raises
        Unauthenticated.
        """
        dead: list[Dead] = await self._run_blocking(lambda: _dead(failed))
        is_refused, why = False, ""

        async def word(offset: int, deliveries: int, message: Message | DataDamaged) -> pb.SharedSpan:
            nonlocal is_refused, why
            finished = pb.SharedSpan(
                first=offset, last=offset, epoch=failed.part.epoch, lease=failed.part.lease, word=pb.REJECT
            )
            if isinstance(message, DataDamaged):
                self._tell(group, message)
                return finished
            try:
                if not is_refused:  # what comes behind a refused one would wait for as long, and leases end meanwhile
                    async with asyncio.timeout_at(until_s):
                        await self._copy(api, group, message, deliveries, text)
                    return finished
            except Unauthenticated:
                raise
            except LedgerMQError as error:
                if isinstance(error, FINAL):
                    self._tell(group, error)
                    return finished
                is_refused = is_refused or not isinstance(error, OF_ONE)
                why = why or error.message
                log.warning("a dead letter could not be stored", group=group, offset=offset, error=error.message)
            except TimeoutError:
                is_refused, why = True, why or TOO_LATE
                log.warning("a dead letter was not stored in time", group=group, offset=offset)
            finished.word, finished.time_ms = pb.RELEASE_SHARE, REFUSED_PAUSE_MS
            return finished

        return list(await all_of((word(*each) for each in dead), COPIES_AT_ONCE)), why

    async def _copy(self, api: BrokerApi, group: str, message: Message, deliveries: int, text: str) -> None:
        """Store the copy of one message. Raises NoLetters, and what the calls raise."""
        letters = await self._found(api, group, message.topic)
        failures = Failures(group, origin_of(message), deliveries, self._sources.now_ms(), text)
        try:
            await self._stored(api, message, failures, letters)
        except (UnknownTopic, UnknownPartition, MessageTooLarge):  # made again, or its source has larger messages since
            self._forget(group, message.topic, letters)
            letters = await self._found(api, group, message.topic)
            try:
                await self._stored(api, message, failures, letters)
            except MessageTooLarge as error:
                if letters.may_alter:
                    raise
                raise NoLetters(error.message) from error

    async def _stored(self, api: BrokerApi, message: Message, failures: Failures, letters: _Letters) -> None:
        now_us = self._sources.now_us()
        expiry = Expiry(lambda _: letters.ttl, self._sources.now_us)
        expires_us = expiry.expires_us(message.topic, message.headers, message.timestamp_us)
        copy = copy_of(message, failures, letters.name, None, expires_us=expires_us)
        row = _row(copy, now_us)
        if (size := largest_record_bytes(row)) > RECORD_BYTES_MAX:
            raise NoLetters(f"the copy of a message has {size} bytes; a topic takes at most {RECORD_BYTES_MAX}")
        value = Value(letters.name, message.partition % letters.partitions, row, topic_id=letters.id)
        frame = replace(produce_frame([value], now_us, compression="lz4"), at_owner=True)
        [result] = (await api.produce_once(frame)).results
        _answered(result)

    def _forget(self, group: str, topic: str, letters: _Letters) -> None:
        if self._letters.get((group, topic)) is letters:  # not what another message has found since
            del self._letters[group, topic]

    async def _found(self, api: BrokerApi, group: str, topic: str) -> _Letters:
        """Return the dead-letter topic of a group, which is made if there is none. Raises as `_copy`."""
        async with self._finding:
            found = self._letters.get((group, topic))
            if found is None:
                found = await self._made(api, group, _name(group, topic), topic)
                _keep(self._letters, (group, topic), found)
        return found

    async def _made(self, api: BrokerApi, group: str, name: str, topic: str) -> _Letters:
        """Make what is missing, and let the topic have messages as large as those that it gets."""
        infos = await named_topics(api, [topic, name], fresh=True)
        source = _answered(infos[topic])
        wanted = settings_for_failed([source.settings])
        try:
            letters = _answered(infos[name])
            await self._check(group, letters)
        except UnknownTopic:
            wish = pb.CreateTopicRequest(
                name=name, partitions=len(source.partitions), settings=wanted, nonce=self._sources.new_id()
            )
            try:
                letters = (await api.create_topic(wish)).topic
            except TopicExists:  # made by another member meanwhile
                letters = _answered((await named_topics(api, [name], fresh=True))[name])
                await self._check(group, letters)
        may_alter = True
        if not takes(letters.settings, wanted):
            try:
                await api.alter_topic(
                    pb.AlterTopicRequest(name=name, topic_id=letters.topic_id, set=wanted, nonce=self._sources.new_id())
                )
            except Unauthorized:  # most copies fit nevertheless
                may_alter = False
        ttl = TopicTtl(source.message_ttl_ms or None, source.message_ttl_ms_max or None)
        return _Letters(letters.topic_id, name, len(letters.partitions), ttl, may_alter)

    async def _check(self, group: str, letters: pb.TopicInfo) -> None:
        """Check that the first record of an existing topic is of the group, by this broker's own right: the caller need
        not read it. Raises InvalidConfig, and what fetches raise.
        """
        by_bundle: defaultdict[int, list[int]] = defaultdict(list)
        for number, part in enumerate(letters.partitions):
            by_bundle[part.bundle].append(number)

        async def check(bundle: int, numbers: list[int]) -> None:
            first = await self._brokers.at_owner(bundle, lambda owner: _first(owner, letters, numbers))
            if first is not None:
                check_first(letters.name, group, first)

        parts = [
            (bundle, numbers[at : at + PARTITIONS_MAX])
            for bundle, numbers in by_bundle.items()
            for at in range(0, len(numbers), PARTITIONS_MAX)
        ]
        await all_of((check(*each) for each in parts), OWNERS_AT_ONCE)

    def _tell(self, group: str, why: LedgerMQError) -> None:
        if group not in self._told:
            _keep(self._told, group, None)
            log.warning("messages of a share group are finished without a dead letter", group=group, why=why.message)


async def _first(owner: BrokerApi, topic: pb.TopicInfo, numbers: Sequence[int]) -> Message | None:
    """Return the first record of some partitions of a topic, which one broker owns; None if they are empty. Raises
    NotOwner and others.
    """
    queries = [pb.OffsetQuery(topic=topic.name, partition=number, earliest=True) for number in numbers]
    starts = (await owner.list_offsets(pb.ListOffsetsRequest(queries=queries))).results
    wanted = [
        pb.FetchPartition(topic=topic.name, topic_id=topic.topic_id, partition=number, offset=_answered(start).offset)
        for number, start in zip(numbers, starts, strict=True)
    ]
    frame = await owner.fetch_once(pb.FetchRequest(partitions=wanted, max_bytes=1))
    for part in frame.header.partitions:
        if _answered(part).batches:
            batch = part.batches[0]
            row = decoded(part, batch, memoryview(b"".join(frame.payload))[: batch.length]).slice(0, 1)
            return messages_of(row, topic.name, part.partition, batch.base_offset)[0]
    return None


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]


def _answered(answer: A) -> A:
    """Return an answer. Raises the error that it has in place of one."""
    if answer.HasField("error"):
        raise error_from_proto(answer.error)
    return answer


def _name(group: str, topic: str) -> str:
    """Return the name of the topic for dead letters of a topic. Raises NoLetters."""
    try:
        name = dead_letter_topic(group)
    except InvalidConfig as error:
        raise NoLetters(error.message) from error
    if keys.is_internal(name) or name == topic:
        raise NoLetters(f"group {group} can have no dead letters of topic {topic} in topic {name}")
    return name


def _dead(failed: Failed) -> list[Dead]:
    """Return the messages, batch by batch."""
    found: list[Dead] = []
    part = failed.part
    for batch, data in zip(part.batches, failed.payload, strict=True):
        last = batch.base_offset + batch.record_count - 1
        inside = [
            (offset, each.deliveries)
            for each in failed.ranges
            for offset in range(max(each.first, batch.base_offset), min(each.last, last) + 1)
        ]
        if not inside:
            continue
        try:
            records = decoded(part, batch, data)
        except DataDamaged as damage:
            found += [(offset, deliveries, damage) for offset, deliveries in inside]
            continue
        for offset, deliveries in inside:
            row = records.slice(offset - batch.base_offset, 1)
            [message] = messages_of(row, part.topic, part.partition, offset)
            found.append((offset, deliveries, message))
    return found


def _row(copy: Outgoing, now_us: int) -> pa.RecordBatch:
    headers = [{"key": name, "value": value} for name, value in cast(MessageHeaders, copy.headers or ())]
    row = {
        "key": copy.key,
        "value": copy.value,
        "headers": headers,
        "timestamp": now_us,
        "timestampType": PRODUCERS_TYPE,
        "tag": copy.tag,
    }
    return pa.RecordBatch.from_arrays([pa.array([row[field.name]], field.type) for field in SCHEMA], schema=SCHEMA)
