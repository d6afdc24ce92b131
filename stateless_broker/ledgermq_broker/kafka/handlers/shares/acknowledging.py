"""Tell the owners of partitions what members say about their messages. The answers are durable.

A refusal that may pass is repeated for a while: a word that is said twice counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ledgermq import errors
from ledgermq.errors import LedgerMQError, Unauthenticated
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.queues.fetching import PARTITIONS_MAX
from ledgermq_broker.queues.shares import SPANS_MAX

AGAIN_S = 5.0
PAUSE_S = 0.1

Spans = Sequence[pb.SharedSpan]


@dataclass(frozen=True, slots=True)
class Topic:
    """`id`: ours."""

    id: int
    name: str


Partition = tuple[Topic, int]


@dataclass(frozen=True, slots=True)
class Heard:
    """`code`: the client is to get it. `spans`: those that the owner has judged."""

    code: Code = Code.NONE
    message: str | None = None
    spans: Spans = ()


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
