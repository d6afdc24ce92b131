"""Answer ShareFetch and ShareAcknowledge of one connection, as a member of a queue group.

    what is leased          the messages alone, as they are stored; at most `max_records`, as Kafka's soft bound
    a lock                  the lease, of `LOCK_MS`; its owner ends it, also if this broker or the client is gone
    the connection ends     what is held is given back at once, and the delivery counts: a message may have ended the
                            program. A session that a client closes gives it back without that
    too many deliveries     the message goes to the dead letters of its group (`burying`)
    rejected messages       go there, too, before they are finished (`acknowledging`)
    expired messages        finished without a delivery, as our own members do it
    only errors             wait up to `ERRORS_WAIT_S`: a client asks again at once

A group begins in a partition that it has not read yet where the broker's settings say.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ledgermq.buffers import KIB, MIB
from ledgermq.client.messages.expiry import TopicTtl
from ledgermq.errors import InvalidRequest, LedgerMQError, ResourceExhausted, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.handlers.fetch import ERRORS_WAIT_S, TURN_S, WAIT_S_MAX, let_go
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.handlers.shares.acknowledging import (
    BURIED_AT_ONCE,
    BURYING_S,
    PAUSE_S,
    Heard,
    Partition,
    Spans,
    Topic,
    acknowledge,
    say,
)
from ledgermq_broker.kafka.handlers.shares.answers import acknowledge_answer, fetch_answer, fetched_partition
from ledgermq_broker.kafka.handlers.shares.burying import Burying, Failed
from ledgermq_broker.kafka.handlers.shares.converting import Sent, sent
from ledgermq_broker.kafka.handlers.shares.leases import Batch, Held, Place, runs_of
from ledgermq_broker.kafka.handlers.shares.sessions import BEGINS, ENDS, Room, Session, SessionRefused, Sessions
from ledgermq_broker.kafka.handlers.shares.topics import TopicNames
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import share_acknowledge_response as acknowledged
from ledgermq_broker.kafka.wire.generated import share_fetch_response as fetched
from ledgermq_broker.queues.fetching import PARTITIONS_MAX
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_offsets.names import kept_name

LOCK_MS = 30_000
ANSWER_BYTES_MAX = 16 * MIB
"""Of records in one answer, whatever a client asks for."""
INLINE_BYTES_MAX = 256 * KIB
CLOSE_S = 5.0
LATEST = "latest"

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
Found = dict[Place, Sent | LedgerMQError]
Said = Sequence[tuple[Place, Sequence[Batch]]]


class ShareHandler:
    """`settings()`: of this broker, as they are now. `room`: for the sessions of all connections."""

    def __init__(
        self,
        brokers: Brokers,
        run_blocking: RunBlocking,
        settings: Callable[[], BrokerSettings],
        room: Room,
        sources: Sources,
    ) -> None:
        self._run_blocking = run_blocking
        self._settings = settings
        self._sessions = Sessions(room)
        self._names = TopicNames(brokers)
        self._burying = Burying(brokers, sources, run_blocking)
        self._now_us = sources.now_us
        self._api: BrokerApi | None = None

    # Calls

    async def fetch(self, asked: Asked) -> fetched.ShareFetchResponse:
        message = asked.message
        places = _places(message.topics)
        try:
            session = await self._fetching(asked, places)
            heard = await self._acknowledge(asked.api, session, places)
            if message.share_session_epoch == ENDS:
                await self._end(asked.api, session)
                return fetch_answer([(place, fetched_partition(place, None, heard[place])) for place in heard], LOCK_MS)
            session.read((place for place, _ in places), _forgotten(message.forgotten_topics_data))
            found = await self._collect(asked, session, waits=not heard)
        except SessionRefused as refused:
            return fetched.ShareFetchResponse(error_code=refused.code, error_message=refused.message)
        except LedgerMQError as error:
            return fetched.ShareFetchResponse(error_code=group_code(error), error_message=error.message)
        parts = [
            (place, fetched_partition(place, found.get(place), heard.get(place)))
            for place in dict.fromkeys((*heard, *found))
        ]
        return fetch_answer(parts, LOCK_MS)

    async def acknowledge(self, asked: Asked) -> acknowledged.ShareAcknowledgeResponse:
        message = asked.message
        places = _places(message.topics)
        try:
            group, member = _names(message)
            session = self._sessions.next(group, member, message.share_session_epoch)
            await self._names.learn(asked.api, (place.topic_id for place, _ in places))
            self._api = asked.api
            heard = await self._acknowledge(asked.api, session, places)
            if message.share_session_epoch == ENDS:
                await self._end(asked.api, session)
        except SessionRefused as refused:
            return acknowledged.ShareAcknowledgeResponse(error_code=refused.code, error_message=refused.message)
        except LedgerMQError as error:
            return acknowledged.ShareAcknowledgeResponse(error_code=group_code(error), error_message=error.message)
        return acknowledge_answer(heard)

    async def close(self) -> None:
        """Give back what is held, as the connection has ended."""
        if self._api is None:
            return
        try:
            with suppress(LedgerMQError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    for session in self._sessions.all():
                        await self._give_back(self._api, session, pb.RELEASE_SHARE)
        finally:
            self._sessions.close()

    # Inside

    async def _fetching(self, asked: Asked, places: Said) -> Session:
        message = asked.message
        group, member = _names(message)
        if message.share_session_epoch == BEGINS and any(batches for _, batches in places):
            raise SessionRefused(Code.INVALID_REQUEST, "the first request of a share session acknowledges nothing")
        session = self._sessions.fetching(group, member, message.share_session_epoch, asked.client_host)
        self._api = asked.api
        await self._names.learn(asked.api, (place.topic_id for place, _ in places))
        return session

    async def _acknowledge(self, api: BrokerApi, session: Session, places: Said) -> dict[Place, Heard]:
        """Tell the owners what the member says; return what they answer, for each partition about which it says
        something. Raises Unauthenticated.
        """
        heard: dict[Place, Heard] = {}
        words: dict[Partition, Spans] = {}
        asked_of: dict[Partition, tuple[Place, bool]] = {}
        for place, batches in places:
            if not batches:
                continue
            topic = self._names.of(place.topic_id)
            try:
                spans, are_held = session.leases.spans(place, runs_of(batches))
            except InvalidRequest as error:
                heard[place] = Heard(Code.INVALID_REQUEST, error.message)
                continue
            if topic is None:
                heard[place] = Heard(Code.UNKNOWN_TOPIC_ID, "there is no such topic")
            elif not spans:
                heard[place] = _not_held()
            else:
                words[topic, place.partition] = spans
                asked_of[topic, place.partition] = place, are_held
        places_of = {at: place for at, (place, _) in asked_of.items()}
        answers = await acknowledge(api, session, self._burying, words, places_of)
        for partition, (place, are_held) in asked_of.items():
            answer = answers.get(partition, Heard())
            session.leases.ended(place, answer.spans)
            heard[place] = answer if are_held or answer.code else _not_held()
        return heard

    async def _collect(self, asked: Asked, session: Session, *, waits: bool) -> Found:
        """Lease messages, and wait for some as long as the client does. `waits`: also if there are only errors."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(WAIT_S_MAX, max(0, asked.message.max_wait_ms) / 1000)
        while True:
            let_go()
            found = await self._turn(asked, session, max(0.0, until_s - loop.time()))
            left_s = until_s - loop.time()
            if found or left_s <= 0:
                break
            if not session.partitions:
                await asyncio.sleep(left_s)
                break
        if waits and not any(isinstance(one, Sent) for one in found.values()):
            await asyncio.sleep(min(ERRORS_WAIT_S, max(0.0, until_s - loop.time())))
        return found

    async def _turn(self, asked: Asked, session: Session, wait_s: float) -> Found:
        """Lease from some partitions of a session, and note what the client gets."""
        found: Found = {}
        wanted = session.next_partitions(PARTITIONS_MAX)
        await self._names.learn(asked.api, (place.topic_id for place in wanted))
        places: dict[tuple[str, int], Place] = {}
        for place in sorted(wanted, key=self._age):  # of two topics of one name, the newer one is there
            topic = self._names.of(place.topic_id)
            if topic is None or place.partition < 0:
                found[place] = UnknownTopic("there is no such topic")
            elif (before := places.pop((topic.name, place.partition), None)) is not None:
                found[before] = UnknownTopic("the topic was deleted, and made anew")
            if place not in found and topic is not None:
                places[topic.name, place.partition] = place
        if not places:
            return found
        ttls = await self._names.ttls(asked.api, (name for name, _ in places))
        has_others = len(places) < len(session.partitions)
        wait_s = 0.0 if found else min(TURN_S, wait_s) if has_others else wait_s
        try:
            frame = await asked.api.share_fetch(self._request(asked, session, places.values(), wait_s))
        except ResourceExhausted as error:  # above its quota: nothing, later
            await asyncio.sleep(min(wait_s, max(PAUSE_S, (error.retry_after_ms or 0) / 1000)))
            return found
        self._note(session, frame, places)
        convert = partial(_converted, frame, places, ttls, self._now_us())
        parts: Found = await (self._run_blocking(convert) if frame.payload_bytes > INLINE_BYTES_MAX else _now(convert))
        await self._sort_out(asked.api, session, frame, parts, places)
        return found | {place: one for place, one in parts.items() if isinstance(one, LedgerMQError) or one.ranges}

    def _age(self, place: Place) -> int:
        topic = self._names.of(place.topic_id)
        return -1 if topic is None else topic.id

    def _request(self, asked: Asked, session: Session, places: Iterable[Place], wait_s: float) -> pb.ShareFetchRequest:
        message = asked.message
        topics = ((self._names.of(place.topic_id), place.partition) for place in places)
        return pb.ShareFetchRequest(
            group=session.group,
            member_id=session.member,
            partitions=[
                pb.SharePartition(topic=topic.name, topic_id=topic.id, partition=number)
                for topic, number in topics
                if topic is not None
            ],
            max_records=max(1, message.max_records),
            max_bytes=min(ANSWER_BYTES_MAX, max(1, message.max_bytes)),
            max_wait_ms=math.ceil(1000 * wait_s),  # 0 would come back at once, again and again
            lease_ms=LOCK_MS,
            latest=self._settings().kafka_share_auto_offset_reset == LATEST,
        )

    def _note(self, session: Session, frame: ShareFetchFrame, places: Mapping[tuple[str, int], Place]) -> None:
        """Note all leases of an answer, so that they are given back if the connection ends now."""
        now_s = asyncio.get_running_loop().time()
        for part in frame.header.partitions:
            until_s = now_s + part.lease_ms / 1000
            held = [Held(one.first, one.last, part.epoch, part.lease, until_s, one.deliveries) for one in part.ranges]
            session.leases.note(places[part.topic, part.partition], held, now_s)

    async def _sort_out(
        self,
        api: BrokerApi,
        session: Session,
        frame: ShareFetchFrame,
        parts: Found,
        places: Mapping[tuple[str, int], Place],
    ) -> None:
        """Give back what the answer has no room for, finish what has expired, bury what was delivered too often."""
        words: dict[Partition, Spans] = {}
        dead: dict[tuple[Topic, Place], Failed] = {}
        for part in frame.header.partitions:
            place = places[part.topic, part.partition]
            found, topic = parts[place], self._names.of(place.topic_id)
            if isinstance(found, LedgerMQError) or topic is None:
                continue
            if found.failed:
                dead[topic, place] = Failed(part, found.payload, found.failed)
            spans = [
                pb.SharedSpan(first=one.first, last=one.last, epoch=part.epoch, lease=part.lease, word=word)
                for ranges, word in ((found.left, pb.RETURN), (found.expired, pb.ACCEPT))
                for one in ranges
            ]
            if spans:
                words[topic, place.partition] = spans
                session.leases.ended(place, spans)
            if found.damage is not None and not found.ranges:
                parts[place] = found.damage
        if words:
            await say(api, session.group, session.member, words, again_s=0.0)
        until_s = asyncio.get_running_loop().time() + BURYING_S

        async def bury(topic: Topic, place: Place, failed: Failed) -> None:
            spans, _ = await self._burying.bury(api, session.group, failed, until_s)
            session.leases.ended(place, spans)
            await say(api, session.group, session.member, {(topic, place.partition): spans}, again_s=0.0)

        await all_of((bury(*at, failed) for at, failed in dead.items()), BURIED_AT_ONCE)

    async def _end(self, api: BrokerApi, session: Session) -> None:
        self._sessions.end(session)
        await self._give_back(api, session, pb.RETURN)

    async def _give_back(self, api: BrokerApi, session: Session, word: pb.ShareWord) -> None:
        words = {
            (topic, place.partition): spans
            for place, spans in session.leases.everything(word)
            if (topic := self._names.of(place.topic_id)) is not None
        }
        if words:
            await say(api, session.group, session.member, words, again_s=0.0)


async def _now(convert: Callable[[], Found]) -> Found:
    return convert()


def _converted(
    frame: ShareFetchFrame, of_name: Mapping[tuple[str, int], Place], ttls: Mapping[str, TopicTtl | None], now_us: int
) -> Found:
    """Convert an answer, until it is full. `ttls`: by topic."""
    found: Found = {}
    payload = memoryview(frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload))
    at, left, is_first = 0, ANSWER_BYTES_MAX, True
    for part in frame.header.partitions:
        pieces = []
        for batch in part.batches:
            pieces.append(payload[at : at + batch.length])
            at += batch.length
        place = of_name[part.topic, part.partition]
        if part.HasField("error"):
            found[place] = error_from_proto(part.error)
            continue
        ttl = ttls.get(part.topic)
        one = found[place] = sent(part, pieces, bytes_max=left, first=is_first, ttl=ttl, now_us=now_us)
        left -= one.size_bytes
        is_first = is_first and not one.records
    return found


def _names(message: Any) -> tuple[str, str]:
    """Return the group and the member, as they are kept here. Raises InvalidGroupName, SessionRefused."""
    if not message.member_id:
        raise SessionRefused(Code.INVALID_REQUEST, "MemberId can't be empty.")
    return inside(message.group_id or ""), kept_name(message.member_id)


def _places(topics: Iterable[Any]) -> list[tuple[Place, Sequence[Batch]]]:
    """Return the partitions of a request, each once, with what is said about them."""
    found: dict[Place, Sequence[Batch]] = {}
    for topic in topics:
        for one in topic.partitions:
            found[Place(topic.topic_id, one.partition_index)] = one.acknowledgement_batches
    return list(found.items())


def _forgotten(topics: Iterable[Any]) -> Iterable[Place]:
    return (Place(topic.topic_id, number) for topic in topics for number in topic.partitions)


def _not_held() -> Heard:
    return Heard(Code.INVALID_RECORD_STATE, "some of these offsets are not leased to this member")
