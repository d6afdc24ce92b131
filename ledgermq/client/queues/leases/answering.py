"""Say what became of leased messages, by their handles (`client.queues.answer`).

A message that goes to the dead-letter topic is renewed first, then copied, and finished last: a late or forged handle
puts nothing there, because its renewal does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, get_args

from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import subscription_of
from ledgermq.client.groups.retry_topics import ERROR_BYTES_MAX, origin_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.paging.pages import BYTES_MAX, Pages
from ledgermq.client.queues.dead_letters import REFUSED_PAUSE_MS, DeadLetters, dead_letters_of
from ledgermq.client.queues.leases.handles import LeaseHandle, caller_hash, lease_of_handle
from ledgermq.client.queues.message import SECONDS_MAX
from ledgermq.client.queues.words import Said, spans_of
from ledgermq.errors import InvalidRequest, LedgerMQError, OffsetOutOfRange
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of

ANSWERS_MAX = 2_000
CALLS_AT_ONCE = 8

AnswerWord = Literal["ack", "nack", "return", "extend", "dead_letter"]
ANSWER_WORDS: tuple[AnswerWord, ...] = get_args(AnswerWord)
_WORDS = {"ack": pb.ACCEPT, "nack": pb.RELEASE_SHARE, "return": pb.RETURN, "extend": pb.RENEW}


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What became of a leased message. `word`:

    "ack"          it is finished
    "nack"         any member gets it again after `seconds`; after its last attempt it goes to the dead-letter topic,
                   with the text `error`
    "return"       any member gets it again at once, and this delivery does not count
    "extend"       its lease lasts `seconds` from now on; None: as long as it was at first
    "dead_letter"  it goes to the dead-letter topic, with the text `error`
    """

    handle: str
    word: AnswerWord = "ack"
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """`counts`: whether the answer counts, durably. False without an `error`: it came too late; the message is no
    longer leased under this handle, and another member has it, or had it. `error`: why it is not known, or not done.
    """

    counts: bool
    error: LedgerMQError | None = None


LATE, DONE = LeaseResult(False), LeaseResult(True)


class Answering:
    """Sends answers of any queue groups."""

    def __init__(self, context: ClientContext, admin: Admin) -> None:
        self._context = context
        self._admin = admin

    async def answer(self, answers: Iterable[LeaseAnswer], caller: str) -> list[LeaseResult]:
        """See `QueueAdmin.answer`."""
        given = list(answers)
        if len(given) > ANSWERS_MAX:
            raise InvalidRequest(f"at most {ANSWERS_MAX} answers in one call, not {len(given)}")
        handles = [_checked(answer, caller) for answer in given]
        results: list[LeaseResult] = [LATE] * len(given)
        dead = [at for at in range(len(given)) if _is_dead(given[at], handles[at])]
        said = sorted(set(range(len(given))) - set(dead))
        await self._say(results, handles, said, lambda at: _word_of(given[at], handles[at]))
        if dead:
            await self._bury(results, handles, dead, [answer.error for answer in given])
        return results

    async def _say(
        self,
        results: list[LeaseResult],
        handles: Sequence[LeaseHandle],
        which: Sequence[int],
        word: Callable[[int], tuple[pb.ShareWord, int]],
    ) -> None:
        """Send words, and note for each whether it counts. One call is about one partition and names each message once:
        a broker answers by offsets.
        """
        left = list(which)
        while left:
            calls: dict[tuple[str, TopicPartition], dict[int, int]] = defaultdict(dict)
            later = []
            for at in left:
                handle = handles[at]
                call = calls[handle.group, handle.at]
                same_topic = not call or handles[next(iter(call.values()))].lease.topic_id == handle.lease.topic_id
                if handle.offset in call or not same_topic:
                    later.append(at)
                else:
                    call[handle.offset] = at
            await all_of(
                (self._say_of(results, handles, sorted(call.values()), word) for call in calls.values()), CALLS_AT_ONCE
            )
            left = later

    async def _say_of(
        self,
        results: list[LeaseResult],
        handles: Sequence[LeaseHandle],
        which: Sequence[int],
        word: Callable[[int], tuple[pb.ShareWord, int]],
    ) -> None:
        words = sorted((Said(handles[at].offset, handles[at].lease, *word(at)) for at in which), key=_offset)
        first = handles[which[0]]
        part = pb.SharePartitionAnswer(
            topic=first.at.topic,
            topic_id=first.lease.topic_id,
            partition=first.at.partition,
            spans=spans_of(words),
        )
        request = pb.ShareAnswerRequest(group=first.group, partitions=[part])

        async def ask(
            at: BrokerApi, partitions: Sequence[TopicPartition]
        ) -> list[pb.SharePartitionResult | LedgerMQError]:
            found = await at.share_answer(request)
            return [error_from_proto(each.error) if each.HasField("error") else each for each in found.results]

        owners = AtOwners(self._context.connections, self._context.routing, ask)
        try:
            answer = (await owners.find([first.at], self._context.connections.deadline()))[first.at]
        except LedgerMQError as error:
            for at in which:
                results[at] = LeaseResult(False, error)
            return
        late = {offset for span in answer.late for offset in range(span.first, span.last + 1)}
        for at in which:
            results[at] = LATE if handles[at].offset in late else DONE

    async def _bury(
        self, results: list[LeaseResult], handles: Sequence[LeaseHandle], which: Sequence[int], errors: Sequence[str]
    ) -> None:
        """Move messages to the dead-letter topics of their groups."""
        await self._say(results, handles, which, lambda at: (pb.RENEW, handles[at].lease_ms))
        held = [at for at in which if results[at].counts]
        late = [at for at in which if results[at] is LATE]
        letters = _Letters(self._context, self._admin)
        failed: dict[int, LedgerMQError] = {}

        async def copy(at: int) -> None:
            try:
                await letters.put(handles[at], errors[at])
            except LedgerMQError as error:
                failed[at] = error

        async with letters.open:
            await all_of(map(copy, held), CALLS_AT_ONCE)
        finished = [at for at in held if at not in failed]
        await self._say(results, handles, finished, lambda at: (pb.REJECT, 0))
        await self._say(results, handles, sorted(failed), lambda at: (pb.RELEASE_SHARE, REFUSED_PAUSE_MS))
        await self._say(results, handles, late, lambda at: (pb.REJECT, 0))  # counts if this lease has moved it before
        for at, error in failed.items():
            results[at] = LeaseResult(False, error)


class _Letters:
    """The dead-letter topics of one call."""

    def __init__(self, context: ClientContext, admin: Admin) -> None:
        self._context = context
        self._admin = admin
        self.open = AsyncExitStack()
        self._topics: dict[tuple[str, str], DeadLetters] = {}

    async def put(self, handle: LeaseHandle, error: str) -> None:
        message = await self._message(handle)
        key = handle.group, origin_of(message).topic
        if key not in self._topics:
            subscription = subscription_of(handle.group, [key[1]], "earliest")
            self._topics[key] = dead_letters_of(self._context, self._admin, subscription)
            self.open.push_async_callback(self._topics[key].close)
        await self._topics[key].put(message, handle.attempt, error)

    async def _message(self, handle: LeaseHandle) -> Message:
        topic, partition = handle.at
        page = await Pages(self._context).read(
            topic, partition, {partition: handle.offset}, "oldest", 1, BYTES_MAX, 0.0, ""
        )
        for message in page.messages:
            if message.offset == handle.offset and page.topic_id == handle.lease.topic_id:
                return message
        raise OffsetOutOfRange(
            f"the message at {handle.at}, offset {handle.offset}, is no longer there: acknowledge it"
        )


def _checked(answer: LeaseAnswer, caller: str) -> LeaseHandle:
    """Return what the handle of an answer says. Raises InvalidRequest."""
    handle = lease_of_handle(answer.handle)
    if caller and handle.caller != caller_hash(caller):
        raise InvalidRequest(f"the message at {handle.at}, offset {handle.offset}, was leased to another caller")
    if answer.word not in ANSWER_WORDS:
        raise InvalidRequest(f"an answer is one of {', '.join(ANSWER_WORDS)}, not {answer.word!r:.40}")
    if answer.seconds is not None and not 0 <= answer.seconds <= SECONDS_MAX:
        raise InvalidRequest(f"seconds must be 0 to {SECONDS_MAX} (12 hours), not {answer.seconds!r}")
    if len(answer.error.encode()) > 16 * ERROR_BYTES_MAX:
        raise InvalidRequest(f"the text of an error has more than {16 * ERROR_BYTES_MAX} bytes")
    return handle


def _is_dead(answer: LeaseAnswer, handle: LeaseHandle) -> bool:
    is_last = answer.word == "nack" and handle.attempt >= handle.attempts_max
    return handle.dead_letters and (is_last or answer.word == "dead_letter")


def _word_of(answer: LeaseAnswer, handle: LeaseHandle) -> tuple[pb.ShareWord, int]:
    if answer.word == "dead_letter" or (answer.word == "nack" and handle.attempt >= handle.attempts_max):
        return pb.REJECT, 0  # the group keeps no dead letters
    if answer.word == "extend":
        return pb.RENEW, handle.lease_ms if answer.seconds is None else max(1, round(1000 * answer.seconds))
    delay_s = answer.seconds if answer.word == "nack" else None
    return _WORDS[answer.word], round(1000 * (delay_s or 0))


def _offset(said: Said) -> int:
    return said.offset
