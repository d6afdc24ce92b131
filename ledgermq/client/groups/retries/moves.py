"""Failed messages of one partition that go to another topic. Pure.

Invariant: a message moves together with the commit of an offset above it: a committed offset is a
prefix, so an earlier copy would be handed out beside the original if that is delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random  # noqa: TID251  the type only; the generator is injected
from typing import NamedTuple, Protocol

from ledgermq.client.consuming.message import Message
from ledgermq.client.groups.retry_topics import (
    ERROR_BYTES_MAX,
    EXPIRED,
    TIME_MS_MAX,
    Failures,
    cut,
    dead_letter_topic,
    due_ms_of,
    earlier_failures,
    origin_of,
    retry_topic,
)
from ledgermq.client.messages.expiry import Expiry
from ledgermq.sources import Sources

MOVE_OVERHEAD_BYTES = 500
"""Estimated memory of a held message besides its data."""


class Move(NamedTuple):
    """A failed message, and where its copy goes. `due_ms`: when the copy is delivered; None: at once.
    `carried`: it was not tried since its last move, and goes to the end of the retry topic as it is.
    `expires_us`: when the message expires; None: never. `expired`: that is why it is moved.
    """

    message: Message
    failures: Failures
    topic: str
    due_ms: int | None
    carried: bool = False
    expires_us: int | None = None
    expired: bool = False

    @property
    def is_dead(self) -> bool:
        return self.topic == dead_letter_topic(self.failures.group)


class Waits(Protocol):
    """The part of a retry policy that decides about moves."""

    def wait_s(self, attempt: int, random: Random) -> float: ...

    def is_last(self, attempt: int) -> bool: ...


class MovePolicy:
    """Decides where a failed message of a group goes. `keeps_expired`: whether one whose time to live is over
    goes to the dead-letter topic.
    """

    def __init__(
        self,
        group: str,
        waits: Waits,
        sources: Sources,
        held_max: int,
        held_bytes_max: int,
        expiry: Expiry,
        *,
        keeps_expired: bool,
    ) -> None:
        self.group = group
        self.keeps_expired = keeps_expired
        self._expiry = expiry
        self._waits = waits
        self._sources = sources
        self.held_max = held_max
        self.held_bytes_max = held_bytes_max

    def move(self, message: Message, error: str, delay_s: float | None = None, *, dead: bool = False) -> Move:
        """Return the move of a message whose call has failed. `delay_s`: the program's wait; None: that of
        the policy. `dead`: without further attempts.
        """
        earlier = earlier_failures(message)
        now_ms = self._sources.now_ms()
        attempts = 1 if earlier is None else earlier.attempts + 1
        first_ms = now_ms if earlier is None else earlier.first_ms
        failures = Failures(self.group, origin_of(message), attempts, first_ms, cut(error, ERROR_BYTES_MAX))
        expires_us = self._expires_us(message)
        if dead or self._waits.is_last(attempts):
            return Move(message, failures, dead_letter_topic(self.group), None, expires_us=expires_us)
        wait_s = self._waits.wait_s(attempts, self._sources.random) if delay_s is None else delay_s
        due_ms = min(now_ms + round(wait_s * 1000), TIME_MS_MAX)
        return Move(message, failures, retry_topic(self.group), due_ms, expires_us=expires_us)

    def carried(self, message: Message) -> Move:
        """Return the move of a copy that waits for its time, and holds up the commit of what is behind it."""
        failures = earlier_failures(message)
        assert failures is not None, "only copies wait"
        expires_us = self._expires_us(message)
        return Move(message, failures, message.topic, due_ms_of(message), carried=True, expires_us=expires_us)

    def expired(self, message: Message) -> Move:
        """Return the move of a message whose time to live is over: to the dead-letter topic."""
        earlier = earlier_failures(message)
        attempts, first_ms = (0, self._sources.now_ms()) if earlier is None else (earlier.attempts, earlier.first_ms)
        failures = Failures(self.group, origin_of(message), attempts, first_ms, EXPIRED)
        expires_us = self._expires_us(message)
        return Move(message, failures, dead_letter_topic(self.group), None, expires_us=expires_us, expired=True)

    def _expires_us(self, message: Message) -> int | None:
        return self._expiry.expires_us(message.topic, message.headers, message.timestamp_us)


class Moves:
    """The moves of one partition that wait for the commit of an offset above them."""

    def __init__(self) -> None:
        self._by_offset: dict[int, Move] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_offset)

    def add(self, offset: int, move: Move) -> None:
        assert offset not in self._by_offset, "a message fails once in one delivery"
        self._by_offset[offset] = move
        self.bytes += size_of(move.message)

    def below(self, offset: int) -> Sequence[Move]:
        """Return the moves that the commit of this offset needs, in the order of their offsets."""
        return [self._by_offset[each] for each in sorted(self._by_offset) if each < offset]

    def remove_below(self, offset: int) -> None:
        """Forget the moves that were committed with this offset."""
        for each in [each for each in self._by_offset if each < offset]:
            self.bytes -= size_of(self._by_offset.pop(each).message)

    def remove_from(self, offset: int) -> None:
        """Forget the moves from this offset on, because their messages are delivered again."""
        for each in [each for each in self._by_offset if each >= offset]:
            self.bytes -= size_of(self._by_offset.pop(each).message)


def size_of(message: Message) -> int:
    """Return the estimated memory of a message that is held."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return MOVE_OVERHEAD_BYTES + len(message.key or b"") + len(message.raw or b"") + headers
