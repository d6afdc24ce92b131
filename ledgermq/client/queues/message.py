"""Messages of a queue group, each leased to this member until a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from math import isfinite
from typing import Any, ClassVar, Protocol

from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.serializers import V
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb

SECONDS_MAX = 12 * 3600
"""Longest lease, and longest wait of a message that is given back."""


class Reply:
    """The cluster's answer to what was said about a message. Await it, or leave it: it is sent all the same.

    True: it counts, durably; of all members that acknowledge a message, one at most gets True. False: the message
    was no longer leased to this member, and another one has it, or had it. False is also the answer if the partition
    changed hands after this member's word was stored and before it was answered. Errors: Unavailable if no broker
    answered in time.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: concurrent.futures.Future[bool] = concurrent.futures.Future()

    def __await__(self) -> Generator[Any, None, bool]:
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout_s: float | None = None) -> bool:
        """Wait for it in a thread that runs no event loop. Raises TimeoutError, and the errors above."""
        return self._future.result(timeout_s)

    def done(self) -> bool:
        return self._future.done()

    def settle(self, counts: bool) -> None:
        if not self._future.done():
            self._future.set_result(counts)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Words(Protocol):
    """Takes what the program says about leased messages. Usable from any thread."""

    def say(
        self, at: TopicPartition, offset: int, lease: Lease, word: pb.ShareWord, time_ms: int, reply: Reply
    ) -> None: ...

    def refuse(self, message: QueueMessage, delay_s: float, error: str, *, dead: bool, reply: Reply) -> None: ...


class Lease:
    """Messages of one partition that came in one answer. `until_s`: a time of the loop's clock, a little before
    the broker ends the lease. `ranges`: (first offset, deliveries), ascending. `base`: the class of the queue's
    messages (`opened`); None: `QueueMessage`.
    """

    __slots__ = ("_firsts", "_words", "epoch", "kind", "number", "ranges", "topic_id", "until_s")

    def __init__(
        self,
        words: Words,
        topic_id: int,
        epoch: int,
        number: int,
        until_s: float,
        ranges: Sequence[tuple[int, int]],
        base: type[QueueMessage] | None = None,
    ) -> None:
        self.kind: type[QueueMessage] = type("QueueMessage", (base or QueueMessage,), {"__slots__": (), "lease": self})
        self.topic_id = topic_id
        self.epoch = epoch
        self.number = number
        self.until_s = until_s
        self.ranges = ranges
        self._firsts = [first for first, _ in ranges]
        self._words = words

    def deliveries(self, offset: int) -> int:
        return self.ranges[bisect_right(self._firsts, offset) - 1][1]

    def say(self, message: QueueMessage, word: pb.ShareWord, time_ms: int = 0) -> Reply:
        reply = Reply()
        at = TopicPartition(message.topic, message.partition)
        self._words.say(at, message.offset, self, word, time_ms, reply)
        return reply

    def refuse(self, message: QueueMessage, delay_s: float, error: str, *, dead: bool = False) -> Reply:
        reply = Reply()
        self._words.refuse(message, delay_s, error, dead=dead, reply=reply)
        return reply


class QueueMessage(Message[V]):
    """A message that a member of a queue group received. Its methods may be called from any thread.

    Equal to the plain `Message` of the same content.
    """

    __slots__ = ()
    lease: ClassVar[Lease]

    @property
    def attempt(self) -> int:
        """Return the number of this delivery, from 1 on. After a change of owners it may be too low by those
        that the former owner had not stored.
        """
        return self.lease.deliveries(self.offset)

    def ack(self) -> Reply:
        """Finish this message. Nothing else needs to be called: it is sent with others within milliseconds."""
        return self.lease.say(self, pb.ACCEPT)

    def nack(self, delay: float | timedelta | None = None, error: str = "") -> Reply:
        """Give this message back: after `delay` (seconds, or a timedelta; None: at once) any member gets it.

        After its last attempt (`attempts_max`) it goes to the dead-letter topic instead, with the text
        `error`. Raises InvalidRequest for a delay above 12 hours.
        """
        return self.lease.refuse(self, _seconds("delay", delay), error)

    def dead_letter(self, reason: str = "") -> Reply:
        """Move this message to the dead-letter topic of its group, without further attempts. With
        dead_letters=False it is finished, and dropped.
        """
        return self.lease.refuse(self, 0.0, reason, dead=True)

    def extend(self, seconds: float | timedelta | None = None) -> Reply:
        """Let the lease last until so long from now (None: as long as it was at first). Raises InvalidRequest
        for more than 12 hours.
        """
        return self.lease.say(self, pb.RENEW, round(_seconds("seconds", seconds) * 1000))

    def __reduce__(self) -> tuple[Callable[[Iterable[Any]], Message], tuple[tuple[Any, ...]]]:
        """Pickle as the plain `Message`, because another process cannot acknowledge it."""
        return Message._make, (tuple(self.stored),)


def _seconds(name: str, given: float | timedelta | None) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else (given or 0.0)
    if not isfinite(seconds) or seconds > SECONDS_MAX:
        raise InvalidRequest(f"{name} must be a number of seconds up to {SECONDS_MAX} (12 hours), not {given!r}")
    return max(0.0, seconds)
