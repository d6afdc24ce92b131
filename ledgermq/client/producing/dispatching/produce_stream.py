"""One stream of produce, or stage, requests to one broker: sends frames and receives answers, several at once.

Frames have numbers, and each answer names its frame; those of a broker of an earlier release have none, and
come in the order of the frames.

Invariants: every frame given to `send` is answered exactly once through `on_answer`, with a
response or an error. The oldest frame has a deadline; when it passes, the stream ends and all its
frames fail. A stream that ended is never used again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.publishing import Response
from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.runtime.tasks import end

FRAMES_IN_FLIGHT_MAX = 32
"""Of a stream."""
FRAMES_OF_BUNDLE_MAX = 8
"""Frames with batches of one bundle that may be without an answer."""
SLOW_S = 0.02
"""From this time of a put on, the batches of each bundle travel in separate frames: then a slow put of one
bundle delays nothing else. Below it, more frames would only cost processor time.
"""
TIME_WEIGHT = 0.2
"""Of the last answer in the mean time of puts."""
ANY_BUNDLE = -1
"""Of a frame with batches of any bundles."""


@dataclass(frozen=True, slots=True)
class SentFrame:
    """`bundle`: that of all its batches, or ANY_BUNDLE."""

    frame: Frame[Any]
    batches: Sequence[Batch]
    sent_s: float
    deadline_s: float
    bundle: int = ANY_BUNDLE


Answer = Response | LedgerMQError
Call = Callable[[Connection, AsyncIterator[Frame[Any]]], AsyncIterator[Response]]


class ProduceStream:
    """`on_answer(address, batches, response or error)` is called from the stream's own task. `call`
    opens the stream of the connection.
    """

    def __init__(
        self, connection: Connection, on_answer: Callable[[str, Sequence[Batch], Answer], None], call: Call
    ) -> None:
        self.address = connection.address
        self._connection = connection
        self._on_answer = on_answer
        self._call = call
        self._waiting: dict[int, SentFrame] = {}
        """By number, the oldest first."""
        self._number = 0
        self._of_bundle: Counter[int] = Counter()
        self._put_s = 0.0
        """A moving mean of the times of puts that answers name; answers of brokers of earlier releases name none, and
        count with the times that they took themselves.
        """
        self._outgoing: asyncio.Queue[Frame[Any] | None] = asyncio.Queue(FRAMES_IN_FLIGHT_MAX)
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is an earlier deadline now, or the stream was ended."""
        self._watched_s = float("inf")
        """`_watch` looks at the oldest frame's deadline no later than at this time."""
        self._given_up = False
        self._credential = connection.credential()
        self.outdated = False
        """Whether calls would carry another credential than this stream, as of the last look."""
        self.ended = False
        self.suspected_s = 0.0
        """When other brokers were last queried whether the broker is still the owner."""

    def oldest(self) -> SentFrame | None:
        """Return the frame that has waited longest for its answer."""
        return next(iter(self._waiting.values()), None)

    @property
    def is_slow(self) -> bool:
        """Return whether puts take so long that frames are made by bundle."""
        return self._put_s >= SLOW_S

    def give_up(self) -> None:
        """End the stream before its deadline: other brokers report that the broker lost its
        partitions, and with them the frames on their way.
        """
        self._given_up = True
        self._wake()

    def look(self) -> None:
        """Look whether the credential has changed. Then the stream takes no further frame, because it would be that
        of the former principal.
        """
        self.outdated = self.outdated or self._connection.credential() != self._credential

    def has_room(self, bundle: int = ANY_BUNDLE, before: int = 0) -> bool:
        """Return whether a frame with batches of this bundle, or of any, may be sent now, and `before` it frames of
        other bundles.
        """
        return (
            not self.ended
            and not self.outdated
            and len(self._waiting) + before < FRAMES_IN_FLIGHT_MAX
            and self._of_bundle[bundle] < FRAMES_OF_BUNDLE_MAX
        )

    def send(self, sent: SentFrame) -> None:
        """Send a frame; needs `has_room()`."""
        assert self.has_room(sent.bundle), "frames in flight are bounded"
        self._number += 1
        sent.frame.header.number = self._number
        self._waiting[self._number] = sent
        self._of_bundle[sent.bundle] += 1
        self._outgoing.put_nowait(sent.frame)
        self._heed_deadline()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def run(self) -> None:
        """Run until the stream fails or is cancelled; raises no error of the broker."""
        error: LedgerMQError = Unavailable(f"the stream to {self.address} was closed")
        try:
            await self._read()
        except LedgerMQError as failure:
            error = failure
        finally:
            self.ended = True
            self._end_requests()
            while self._waiting:
                self._on_answer(self.address, self._waiting.pop(next(iter(self._waiting))).batches, error)

    async def _read(self) -> None:
        # BrokerApi promises an iterator; all our implementations are generators, which must be closed.
        responses = cast(Any, self._call(self._connection, self._requests()))
        lost = asyncio.create_task(self._connection.wait_lost())
        answers = asyncio.create_task(self._take_answers(responses))
        try:
            async with aclosing(responses):
                try:
                    while not answers.done():
                        await self._watch(answers, lost)
                    answers.result()
                finally:
                    await end(answers)
        finally:
            await end(lost)

    async def _take_answers(self, responses: AsyncIterator[Response]) -> None:
        """Receive answers until the stream ends, and raise the reason.

        One task receives all answers, and passes each to its caller directly.
        """
        async for response in responses:
            sent = self._take(response.number, response.put_ms)
            self._heed_deadline()
            self._on_answer(self.address, sent.batches, response)
        raise Unavailable(f"{self.address} ended the stream")

    def _take(self, number: int, put_ms: int) -> SentFrame:
        """Take out the frame that is answered. Raises LedgerMQError if there is none."""
        if not self._waiting:
            raise LedgerMQError(f"{self.address} sent more answers than it received requests")
        sent = self._waiting.pop(number or next(iter(self._waiting)), None)
        if sent is None:
            raise LedgerMQError(
                f"{self.address} answered request {number}, which it did not receive, or for a second time"
            )
        self._of_bundle[sent.bundle] -= 1
        put_s = put_ms / 1000 or asyncio.get_running_loop().time() - sent.sent_s
        self._put_s += TIME_WEIGHT * (put_s - self._put_s)
        return sent

    def _heed_deadline(self) -> None:
        """Take up the deadline of the oldest frame: `_watch` looks at it by then."""
        if (oldest := self.oldest()) is not None and oldest.deadline_s < self._watched_s:
            self._wake()

    async def _watch(self, answers: asyncio.Task[None], lost: asyncio.Task[bool]) -> None:
        """Check the connection; returns now and then.

        Raises DeadlineExceeded or Unavailable when no answer is to be expected any longer.
        """
        if self._given_up:
            raise Unavailable(f"{self.address} does not answer, and other brokers report that it lost its partitions")
        loop = asyncio.get_running_loop()
        if self._woken.done():
            self._woken = loop.create_future()
        now = loop.time()
        oldest = self.oldest()
        self._watched_s = oldest.deadline_s if oldest is not None else float("inf")
        if self._watched_s <= now:
            raise DeadlineExceeded(f"{self.address} did not answer a produce request in time")
        timeout_s = self._watched_s - now if self._waiting else None
        await asyncio.wait((answers, lost, self._woken), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() and not answers.done():
            raise Unavailable(f"the line to {self.address} was lost")

    async def _requests(self) -> AsyncIterator[Frame[Any]]:
        while (frame := await self._outgoing.get()) is not None:
            yield frame

    def _end_requests(self) -> None:
        """Let gRPC's task that reads requests end; gRPC leaves it waiting when a call fails."""
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(None)
