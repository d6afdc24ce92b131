"""Tell the owners of partitions what members say about their messages. The answers are durable.

What is rejected and still held goes to the dead letters of the group, as our own callers do it
(`ledgermq.client.queues.leases.answering`): its lease is renewed, its copy stored, then it is finished. All other
words are said before that, because their leases are not renewed.
A refusal that may pass is repeated for a while: a word that is said twice counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ledgermq import errors
from ledgermq.buffers import MIB, Buffer
from ledgermq.client.queues.dead_letters import REFUSED_PAUSE_MS
from ledgermq.errors import LedgerMQError, Unauthenticated, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of
from ledgermq_broker.kafka.handlers.shares.burying import TOO_LATE, Burying, Failed
from ledgermq_broker.kafka.handlers.shares.leases import Place, parted
from ledgermq_broker.kafka.handlers.shares.sessions import Session
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.queues.fetching import PARTITIONS_MAX
from ledgermq_broker.queues.shares import SPANS_MAX

AGAIN_S = 5.0
PAUSE_S = 0.1
BURYING_S = 5.0
"""For the dead letters of one turn, so that the leases of what the client gets go on."""
BURIED_AT_ONCE = 8
"""Partitions: one whose dead letters have to wait holds up no other."""
READ_BYTES = MIB
"""Of rejected messages that are read again, at a time; a batch may be larger."""
REJECTED = "a member rejected it"

Spans = Sequence[pb.SharedSpan]


@dataclass(frozen=True, slots=True)
class Topic:
    """`id`: ours."""

    id: int
    name: str


Partition = tuple[Topic, int]


@dataclass(frozen=True, slots=True)
class Heard:
    """`code`: the client is to get it. `spans`: those that the owner has judged. `late`: what is not leased so."""

    code: Code = Code.NONE
    message: str | None = None
    spans: Spans = ()
    late: Sequence[pb.OffsetSpan] = ()


async def acknowledge(
    api: BrokerApi,
    session: Session,
    burying: Burying,
    words: Mapping[Partition, Spans],
    places: Mapping[Partition, Place],
) -> dict[Partition, Heard]:
    """Say what a member says, and put what it rejects into the dead letters. Raises Unauthenticated."""
    others, rejected = dict[Partition, Spans](), dict[Partition, Spans]()
    for at, spans in words.items():
        for part, wanted in ((others, False), (rejected, True)):
            if found := [span for span in spans if (span.word == pb.REJECT) == wanted]:
                part[at] = found
    heard = await say(api, session.group, session.member, others)
    said, told = await _bury_rejected(api, session, burying, rejected, places)
    for more in (await say(api, session.group, session.member, said), told):
        for at, each in more.items():
            heard[at] = _both(heard[at], each) if at in heard else each
    return heard


def _both(one: Heard, other: Heard) -> Heard:
    """Return what was heard about two parts of what a member says of a partition; the first code counts."""
    first = one if one.code else other
    return Heard(first.code, first.message, [*one.spans, *other.spans], [*one.late, *other.late])


async def say(
    api: BrokerApi, group: str, member: str, words: Mapping[Partition, Spans], again_s: float = AGAIN_S
) -> dict[Partition, Heard]:
    """Say something about each partition. `group`, `member`: as they are kept here. Raises Unauthenticated."""
    found: dict[Partition, Heard] = {}
    for call in _calls(words):
        found |= await _repeated(api, group, member, call, again_s)
    return found


async def _repeated(
    api: BrokerApi, group: str, member: str, words: Mapping[Partition, Spans], again_s: float
) -> dict[Partition, Heard]:
    until_s = asyncio.get_running_loop().time() + again_s
    found: dict[Partition, Heard] = {}
    while True:
        left = {place: spans for place, spans in words.items() if place not in found}
        results = await _said(api, group, member, left)
        may_pass = {
            place
            for place, result in results.items()
            if isinstance(result, errors.RetriableError) and not isinstance(result, errors.NotOwner)
        }
        is_over = asyncio.get_running_loop().time() >= until_s
        found |= {
            place: _heard(result, left[place]) for place, result in results.items() if is_over or place not in may_pass
        }
        if len(found) == len(words):
            return found
        await asyncio.sleep(PAUSE_S)


async def _said(
    api: BrokerApi, group: str, member: str, words: Mapping[Partition, Spans]
) -> dict[Partition, pb.SharePartitionResult | LedgerMQError]:
    request = pb.ShareAnswerRequest(
        group=group,
        member_id=member,
        partitions=[
            pb.SharePartitionAnswer(topic=topic.name, topic_id=topic.id, partition=number, spans=spans)
            for (topic, number), spans in words.items()
        ],
    )
    try:
        answer = await api.share_answer(request)
    except Unauthenticated:
        raise
    except LedgerMQError as error:
        return dict.fromkeys(words, error)
    return {
        place: error_from_proto(result.error) if result.HasField("error") else result
        for place, result in zip(words, answer.results, strict=True)
    }


def _heard(result: pb.SharePartitionResult | LedgerMQError, spans: Spans) -> Heard:
    if isinstance(result, LedgerMQError):
        return Heard(_code(result), result.message)
    if not result.late:
        return Heard(spans=spans)
    first = result.late[0]
    return Heard(
        Code.INVALID_RECORD_STATE,
        f"offsets {first.first} to {first.last} are not leased to this member any longer, or more of them",
        spans,
        result.late,
    )


# Rejected messages


async def _bury_rejected(
    api: BrokerApi,
    session: Session,
    burying: Burying,
    rejected: Mapping[Partition, Spans],
    places: Mapping[Partition, Place],
) -> tuple[dict[Partition, Spans], dict[Partition, Heard]]:
    """Put what is rejected, and still held, into the dead letters of the group. Return what is to be said about it, and
    what is answered about what has to come again, by partition. Raises Unauthenticated.
    """
    renewals = {at: [_same(span, pb.RENEW) for span in dead] for at, dead in rejected.items()}
    renewed = await say(api, session.group, session.member, renewals)
    until_s = asyncio.get_running_loop().time() + BURYING_S
    words: dict[Partition, Spans] = {}
    told: dict[Partition, Heard] = {}

    async def bury(at: Partition, dead: Spans) -> None:
        if renewed[at].code and not renewed[at].late:
            told[at] = renewed[at]
            return
        late = {offset for span in renewed[at].late for offset in range(span.first, span.last + 1)}
        parts = [part for span in dead for part in parted(span, late)]
        wanted = [(span, session.leases.deliveries(places[at], span.first)) for is_late, span in parts if not is_late]
        said, why = await _buried(api, session.group, burying, at, wanted, until_s)
        # of the late ones, what this lease has moved before counts
        words[at] = [*said, *(span for is_late, span in parts if is_late)]
        if why:
            text = f"a rejected message comes again, because it is not among the dead letters: {why}"
            told[at] = Heard(Code.INVALID_RECORD_STATE, text)

    await all_of((bury(*each) for each in rejected.items()), BURIED_AT_ONCE)
    return words, told


Wanted = Sequence[tuple[pb.SharedSpan, int]]
"""Rejected messages, ascending, each with its number of deliveries."""


async def _buried(
    api: BrokerApi, group: str, burying: Burying, at: Partition, wanted: Wanted, until_s: float
) -> tuple[list[pb.SharedSpan], str]:
    """Read messages again, and store their copies. Return what is to be said about them, and why some come again."""
    again, why, read_to = set[int](), "", 0
    try:
        async with aclosing(_read(api, at, wanted, until_s)) as reading:
            async for end, failed in reading:
                for one in failed:
                    spans, refusal = await burying.bury(api, group, one, until_s, REJECTED)
                    again |= {span.first for span in spans if span.word != pb.REJECT}
                    why = why or refusal
                read_to = end
    except Unauthenticated:
        raise
    except (LedgerMQError, TimeoutError) as error:
        why = why or (error.message if isinstance(error, LedgerMQError) else TOO_LATE)
        again |= {offset for span, _ in wanted for offset in range(max(span.first, read_to), span.last + 1)}
    said = [part for span, _ in wanted for part in parted(span, again)]
    return [_same(span, pb.RELEASE_SHARE, REFUSED_PAUSE_MS) if comes else span for comes, span in said], why


async def _read(
    api: BrokerApi, place: Partition, wanted: Wanted, until_s: float
) -> AsyncGenerator[tuple[int, list[Failed]]]:
    """Yield messages, some at a time, with the offset up to which all have been read. Raises what fetches raise,
    Unavailable, TimeoutError.
    """
    topic, number = place
    at = 0
    for span, _ in wanted:
        at = max(at, span.first)
        while at <= span.last:
            asked = pb.FetchPartition(topic=topic.name, topic_id=topic.id, partition=number, offset=at)
            async with asyncio.timeout_at(until_s):
                frame = await api.fetch_once(pb.FetchRequest(partitions=[asked], max_bytes=READ_BYTES))
            [part] = frame.header.partitions
            if part.HasField("error"):
                raise error_from_proto(part.error)
            end = max([part.next_offset, *(batch.base_offset + batch.record_count for batch in part.batches)])
            if end <= at:
                raise Unavailable(f"{topic.name}/{number} could not be read at offset {at}")
            yield end, failed_of(part, b"".join(frame.payload), [one for one in wanted if one[0].last >= at], at, end)
            at = end


def failed_of(part: pb.FetchedPartition, payload: bytes, wanted: Wanted, begin: int, end: int) -> list[Failed]:
    """Return the messages from `begin` on and below `end`, those of each lease by themselves. What was read may begin
    earlier, with messages that the fetch before has given already.
    """
    pieces, at = list[Buffer](), 0
    for batch in part.batches:
        pieces.append(memoryview(payload)[at : at + batch.length])
        at += batch.length
    found: dict[tuple[int, int], Failed] = {}
    for span, deliveries in wanted:
        if span.first >= end:
            break
        of_lease = pb.LeasedPartition(topic=part.topic, partition=part.partition, epoch=span.epoch, lease=span.lease)
        one = found.setdefault((span.epoch, span.lease), Failed(of_lease, pieces, []))
        first, last = max(span.first, begin), min(span.last, end - 1)
        one.ranges.append(pb.LeasedRange(first=first, last=last, deliveries=deliveries))
    for one in found.values():
        one.part.batches.extend(part.batches)
    return list(found.values())


def _same(span: pb.SharedSpan, word: pb.ShareWord, time_ms: int = 0) -> pb.SharedSpan:
    return pb.SharedSpan(
        first=span.first, last=span.last, epoch=span.epoch, lease=span.lease, word=word, time_ms=time_ms
    )


def _code(error: LedgerMQError) -> Code:
    """Return a code with which Java repeats what may pass. It does not where the leader has changed or the topic is
    gone, for then the leases are gone as well.
    """
    if isinstance(error, errors.NotOwner):
        return Code.NOT_LEADER_OR_FOLLOWER
    if isinstance(error, errors.UnknownTopic | errors.TopicBeingDeleted | errors.UnknownPartition):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, errors.Unauthorized):
        return Code.TOPIC_AUTHORIZATION_FAILED
    if isinstance(error, errors.RetriableError | errors.OutcomeUnknown | errors.DeadlineExceeded):
        return Code.REQUEST_TIMED_OUT
    return Code.UNKNOWN_SERVER_ERROR


def _calls(words: Mapping[Partition, Spans]) -> Iterator[dict[Partition, Spans]]:
    """Divide what is said among calls, each within its bounds."""
    call: dict[Partition, Spans] = {}
    count = 0
    for place, spans in words.items():
        if call and (len(call) == PARTITIONS_MAX or count + len(spans) > SPANS_MAX):
            yield call
            call, count = {}, 0
        call[place] = spans
        count += len(spans)
    if call:
        yield call
