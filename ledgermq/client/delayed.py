"""Delayed messages that wait in the cluster: recall one, list those that come next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.coordinator import Coordinator
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition, check_partition
from ledgermq.client.messages.handles import handle_of, request_of
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
MESSAGES_MAX = 10_000


class RecallOutcome(StrEnum):
    """What became of a delayed message that was recalled."""

    RECALLED = "recalled"
    """It is never delivered. A repeated recall returns this again."""
    TOO_LATE = "too late"
    """It is delivered, or surely will be."""
    FORGOTTEN = "forgotten"
    """It was due so long ago that the cluster no longer knows whether it was delivered or recalled."""


_OUTCOMES = {
    pb.RECALLED: RecallOutcome.RECALLED,
    pb.TOO_LATE: RecallOutcome.TOO_LATE,
    pb.FORGOTTEN: RecallOutcome.FORGOTTEN,
}


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits.

    `topic`: None if the topic was deleted; the message is then dropped when it is due. `handle`: as in
    `SendResult`; None without a topic. `key`: None if it has none, or one that is long.
    """

    topic: str | None
    partition: int
    bundle: int
    due: datetime
    size_bytes: int
    key: bytes | None
    handle: str | None


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """Messages that are due at or after `start` and before `end`, and are stored but not listed."""

    start: datetime
    end: datetime
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DelayedBundle:
    """What waits in one bundle, for all topics.

    `messages`, `size_bytes`: with those that were recalled. `next_due`: of the first message; None if none
    waits. `delivered_to`: everything that was due up to this time is delivered, recalled or dropped; None if
    nothing was due yet. `now`: the owner's time; None if it does not know it yet. `trouble`: why delivery
    waits; empty if it does not. `ranges`: messages of later times, in order.
    """

    bundle: int
    messages: int
    size_bytes: int
    next_due: datetime | None
    delivered_to: datetime | None
    now: datetime | None
    trouble: str
    ranges: tuple[DelayedRange, ...]


@dataclass(frozen=True, slots=True)
class DelayedList:
    """`messages`: in the order of their due times. `left`: number of messages, of any topic, that brokers
    have at hand and that are not in this list; the `ranges` of a bundle have more. `bundles`: those that
    have ever had a delayed message. `unanswered`: bundle -> why its messages are missing.
    """

    messages: tuple[DelayedMessage, ...]
    left: int
    bundles: tuple[DelayedBundle, ...]
    unanswered: Mapping[int, LedgerMQError]


class Delayed:
    """The calls of `client.recall` and `client.list_delayed`."""

    def __init__(self, context: ClientContext, admin: Admin) -> None:
        self._context = context
        self._admin = admin

    async def recall(self, handle: str) -> RecallOutcome:
        """See `Client.recall`."""
        request = request_of(handle)

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> list[RecallOutcome | LedgerMQError]:
            try:
                answer = await at.recall_delayed(request)
            except (NotOwner, ResourceExhausted) as error:
                return [error]
            if answer.outcome not in _OUTCOMES:
                raise Unavailable(f"outcome {answer.outcome} is of a newer version: upgrade this client")
            return [_OUTCOMES[answer.outcome]]

        partition = TopicPartition(request.topic, request.partition)
        deadline = self._context.connections.deadline()
        found = await AtOwners(self._context.connections, self._context.routing, ask).find([partition], deadline)
        return found[partition]

    async def list(self, topic: str | None, partition: int | None, messages_max: int) -> DelayedList:
        """See `Client.list_delayed`."""
        if type(messages_max) is not int or not 0 <= messages_max <= MESSAGES_MAX:
            raise InvalidRequest(f"messages_max must be 0 to {MESSAGES_MAX}, not {messages_max!r}")
        request = pb.ListDelayedRequest(max_messages=messages_max)
        if topic is None:
            if partition is not None:
                raise InvalidRequest("a partition is chosen, but no topic: give the topic, too")
            bundles: Iterable[int] = [
                each.bundle for each in (await self._admin.describe_cluster()).bundles if each.bundle
            ]
        else:
            found = await self._admin.describe_topic(topic)
            request.topic, request.topic_id = found.name, found.topic_id
            if partition is not None:
                request.partition = check_partition(partition, len(found.partitions), topic)
            chosen = found.partitions if partition is None else [found.partitions[partition]]
            bundles = sorted({each.bundle for each in chosen})
        return await self._at_bundles(request, bundles, messages_max)

    async def _at_bundles(self, request: pb.ListDelayedRequest, bundles: Iterable[int], at_most: int) -> DelayedList:
        unanswered: dict[int, LedgerMQError] = {}
        deadline = self._context.connections.deadline()

        async def ask(bundle: int) -> tuple[int, pb.ListDelayedResponse] | None:
            wanted = pb.ListDelayedRequest()
            wanted.CopyFrom(request)
            wanted.bundle = bundle
            owner = Coordinator(self._context.connections, f"bundle {bundle}")
            try:
                return bundle, await owner.ask(lambda at: at.list_delayed(wanted), deadline)
            except LedgerMQError as error:
                unanswered[bundle] = error
                return None

        answers = [found for found in await all_of(map(ask, bundles), CALLS_AT_ONCE) if found is not None]
        if unanswered and not answers:
            raise next(iter(unanswered.values()))
        return merged(answers, at_most, unanswered)


def merged(
    answers: Sequence[tuple[int, pb.ListDelayedResponse]], at_most: int, unanswered: Mapping[int, LedgerMQError]
) -> DelayedList:
    """Return one list of the answers of bundles, with `at_most` messages."""
    messages = sorted(
        ((info, bundle) for bundle, answer in answers for info in answer.messages),
        key=lambda found: (found[0].due_us, found[1], found[0].offset, found[0].row),
    )
    left = sum(answer.left for _, answer in answers) + max(0, len(messages) - at_most)
    summaries = tuple(_bundle(bundle, answer) for bundle, answer in answers if answer.HasField("summary"))
    return DelayedList(tuple(_message(*found) for found in messages[:at_most]), left, summaries, unanswered)


def _time(us: int) -> datetime:
    """Return the time, or the nearest that a datetime can be: other clients may have sent any number."""
    try:
        return datetime_of(us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if us > 0 else datetime.min.replace(tzinfo=UTC)


def _message(info: pb.DelayedMessage, bundle: int) -> DelayedMessage:
    handle = handle_of(
        pb.RecallDelayedRequest(
            topic=info.topic,
            topic_id=info.topic_id,
            partition=info.partition,
            offset=info.offset,
            row=info.row,
            due_us=info.due_us,
        )
    )
    return DelayedMessage(
        info.topic or None,
        info.partition,
        bundle,
        _time(info.due_us),
        info.size_bytes,
        info.key if info.HasField("key") else None,
        handle if info.topic else None,
    )


def _bundle(bundle: int, answer: pb.ListDelayedResponse) -> DelayedBundle:
    summary = answer.summary
    return DelayedBundle(
        bundle,
        summary.messages,
        summary.size_bytes,
        _time(summary.next_due_us) if summary.messages else None,
        _time(summary.watermark_us) if summary.watermark_us > 0 else None,
        _time(summary.now_us) if summary.now_us else None,
        summary.trouble,
        tuple(
            DelayedRange(_time(part.from_us), _time(part.to_us), part.messages, part.size_bytes)
            for part in answer.ranges
        ),
    )
