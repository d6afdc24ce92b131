"""One stream of produce requests to one broker: frames out, answers in, in the same order, several at once.

Invariants: every frame given to `send` is answered exactly once through `on_answer`, with a response or an error; the oldest frame has a
deadline, and when it passes, the stream ends and all its frames fail. A stream that ended is never used again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from ledgermq.client.producing.batch import Batch
from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.tasks import end

FRAMES_IN_FLIGHT_MAX = 8


@dataclass(frozen=True, slots=True)
class SentFrame:
    frame: ProduceFrame
    batches: Sequence[Batch]
    sent_s: float
    deadline_s: float


Answer = pb.ProduceResponse | LedgerMQError


class ProduceStream:
    """`on_answer(address, batches, response or error)` is called from the stream's own task."""

    def __init__(self, connection: Connection, on_answer: Callable[[str, Sequence[Batch], Answer], None]) -> None:
        self.address = connection.address
        self._connection = connection
        self._on_answer = on_answer
        self._waiting: deque[SentFrame] = deque()
        self._outgoing: asyncio.Queue[ProduceFrame | None] = asyncio.Queue(FRAMES_IN_FLIGHT_MAX)
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done: there is a deadline now, or the stream was given up. A future and no task: nothing has to end before an answer goes on."""
        self._given_up = False
        self.ended = False
        self.suspected_s = 0.0
        """When somebody last asked whether the broker is still the owner."""

    def oldest(self) -> SentFrame | None:
        """The frame whose answer is next."""
        return self._waiting[0] if self._waiting else None

    def give_up(self) -> None:
        """The broker lost what is on its way here, by what others say: do not wait for the deadline."""
        self._given_up = True
        self._wake()

    def has_room(self) -> bool:
        return not self.ended and len(self._waiting) < FRAMES_IN_FLIGHT_MAX

    def send(self, sent: SentFrame) -> None:
        """Needs `has_room()`."""
        assert self.has_room(), "frames in flight are bounded"
        self._waiting.append(sent)
        self._outgoing.put_nowait(sent.frame)
        if len(self._waiting) == 1:
            self._wake()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def run(self) -> None:
        """Until the stream fails or is cancelled; raises nothing of the broker's."""
        error: LedgerMQError = Unavailable(f"the stream to {self.address} was closed")
        try:
            await self._read()
        except LedgerMQError as failure:
            error = failure
        finally:
            self.ended = True
            self._end_requests()
            while self._waiting:
                self._on_answer(self.address, self._waiting.popleft().batches, error)

    async def _read(self) -> None:
        # BrokerApi promises an iterator; all of ours are generators, which have to be closed.
        responses = cast(Any, self._connection.produce(self._requests()))
        lost = asyncio.create_task(self._connection.wait_lost())
        try:
            async with aclosing(responses):
                while True:
                    response = await self._next(responses, lost)
                    sent = self._waiting.popleft()
                    self._on_answer(self.address, sent.batches, response)
        finally:
            await end(lost)

    async def _next(self, responses: Any, lost: asyncio.Task[bool]) -> pb.ProduceResponse:
        """The next answer, when one is due. Raises DeadlineExceeded, Unavailable, or what ended the stream."""
        answer = asyncio.create_task(_pull(responses))
        try:
            while not answer.done():
                await self._wait(answer, lost)
            response: pb.ProduceResponse = answer.result()
            if not self._waiting:
                raise LedgerMQError(f"{self.address} answered more requests than it got")
            return response
        except StopAsyncIteration as error:
            raise Unavailable(f"{self.address} ended the stream") from error
        finally:
            await end(answer)

    async def _wait(self, answer: asyncio.Task[Any], lost: asyncio.Task[bool]) -> None:
        if self._given_up:
            raise Unavailable(f"{self.address} does not answer, and others say that it lost its partitions")
        loop = asyncio.get_running_loop()
        if self._woken.done():
            self._woken = loop.create_future()
        now = loop.time()
        if self._waiting and self._waiting[0].deadline_s <= now:
            raise DeadlineExceeded(f"{self.address} did not answer a produce request in time")
        timeout_s = self._waiting[0].deadline_s - now if self._waiting else None
        await asyncio.wait((answer, lost, self._woken), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() and not answer.done():
            raise Unavailable(f"the line to {self.address} was lost")

    async def _requests(self) -> AsyncIterator[ProduceFrame]:
        while (frame := await self._outgoing.get()) is not None:
            yield frame

    def _end_requests(self) -> None:
        """gRPC leaves the task that draws requests waiting when a call fails: let it come to its end."""
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(None)


async def _pull(responses: AsyncIterator[pb.ProduceResponse]) -> pb.ProduceResponse:
    return await anext(responses)
