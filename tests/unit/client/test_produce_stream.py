"""The stream of produce requests: which deadline counts, what ends it.

And the outcome that its answers settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from ledgermq.client.producing.delivery import Outcome
from ledgermq.client.producing.dispatching.produce_stream import (
    FRAMES_IN_FLIGHT_MAX,
    FRAMES_OF_BUNDLE_MAX,
    Answer,
    ProduceStream,
    SentFrame,
)
from ledgermq.client.producing.publishing import Producing
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ProduceFrame
from tests.virtual_time import run_virtual, virtual


class AnswersSome:
    """A broker that answers its first requests a second after each came, then no more, or ends the
    stream.
    """

    address = "a:1"

    def __init__(self, answers: int, *, ends: bool = False, put_ms: int = 0) -> None:
        self._answers = answers
        self._ends = ends
        self._put_ms = put_ms

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for _ in requests:
            if not self._answers:
                if self._ends:
                    return
                await asyncio.Event().wait()
            self._answers -= 1
            await asyncio.sleep(1)
            yield pb.ProduceResponse(put_ms=self._put_ms)

    def credential(self) -> str:
        return ""

    async def wait_lost(self) -> bool:
        await asyncio.Event().wait()
        return True


async def answers_to(connection: AnswersSome, deadlines_s: Sequence[float]) -> list[tuple[float, Answer]]:
    """When each of the frames with these deadlines was answered, and with what; all are sent at
    time 0.
    """
    found: list[tuple[float, Answer]] = []
    loop = asyncio.get_running_loop()
    stream = ProduceStream(
        cast(Any, connection),
        lambda address, batches, answer: found.append((loop.time(), answer)),
        Producing(ProducerSettings()).call,
    )
    running = asyncio.create_task(stream.run())
    await asyncio.sleep(0)
    for deadline_s in deadlines_s:
        stream.send(SentFrame(Frame(pb.ProduceHeader(), []), [], 0.0, deadline_s))
    await running
    assert stream.ended
    return found


@pytest.mark.parametrize(
    ("deadlines_s", "ended_s"), [((30.0, 31.0), 31.0), ((30.0, 5.0), 5.0), ((30.0, 0.5), 1.0), ((30.0, 30.0), 30.0)]
)
def test_the_deadline_of_the_oldest_frame_counts_whether_it_is_later_or_earlier_than_the_one_before(
    deadlines_s: tuple[float, float], ended_s: float
) -> None:
    first, second = run_virtual(lambda: answers_to(AnswersSome(1), deadlines_s))
    assert first == (1.0, pb.ProduceResponse())
    assert second[0] == pytest.approx(ended_s)
    assert isinstance(second[1], DeadlineExceeded)


def test_a_stream_that_the_broker_ends_fails_what_is_on_it() -> None:
    first, *others = run_virtual(lambda: answers_to(AnswersSome(1, ends=True), (30.0, 30.0, 30.0)))
    assert first == (1.0, pb.ProduceResponse())
    assert [(at_s, type(answer)) for at_s, answer in others] == [(1.0, Unavailable)] * 2


class AnswersUnasked(AnswersSome):
    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for _ in requests:
            yield pb.ProduceResponse()
            yield pb.ProduceResponse()


def test_an_unasked_answer_ends_the_stream() -> None:
    answers = run_virtual(lambda: answers_to(AnswersUnasked(0), (30.0,)))
    assert answers == [(0.0, pb.ProduceResponse())]


class AnswersBackwards(AnswersSome):
    """Waits for as many requests as it may answer, and answers the last one first."""

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        numbers: list[int] = []
        async for request in requests:
            numbers.append(request.header.number)
            if len(numbers) == self._answers:
                break
        for number in reversed(numbers):
            await asyncio.sleep(1)
            yield pb.ProduceResponse(number=number, results=[pb.ProduceResult(base_offset=number)])


def batches_named(*names: str) -> list[Any]:
    return list(names)


@virtual
async def test_an_answer_is_that_of_the_frame_that_it_names() -> None:
    found: list[tuple[Any, int]] = []
    stream = ProduceStream(
        cast(Any, AnswersBackwards(3)),
        lambda address, batches, answer: found.append((batches[0], cast(Any, answer).results[0].base_offset)),
        Producing(ProducerSettings()).call,
    )
    running = asyncio.create_task(stream.run())
    for name in ("first", "second", "third"):
        stream.send(SentFrame(Frame(pb.ProduceHeader(), []), batches_named(name), 0.0, 30.0))
    await asyncio.sleep(1.5)
    oldest = stream.oldest()
    assert oldest is not None
    assert oldest.batches == ["first"]
    await running
    assert found == [("third", 3), ("second", 2), ("first", 1)]


class AnswersAnother(AnswersSome):
    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for request in requests:
            yield pb.ProduceResponse(number=request.header.number + 1)


def test_an_answer_to_a_frame_that_was_not_sent_ends_the_stream() -> None:
    ((at_s, error),) = run_virtual(lambda: answers_to(AnswersAnother(0), (30.0,)))
    assert at_s == 0.0
    assert isinstance(error, LedgerMQError)
    assert "which it did not receive" in str(error)


@virtual
async def test_a_bundle_has_some_of_the_frames_of_a_stream_and_leaves_room_for_others() -> None:
    stream = ProduceStream(cast(Any, AnswersSome(0)), lambda *_: None, Producing(ProducerSettings()).call)
    sent = 0
    for bundle in range(1, 10):
        while stream.has_room(bundle):
            stream.send(SentFrame(Frame(pb.ProduceHeader(), []), [], 0.0, 30.0, bundle))
            sent += 1
        assert sent == min(FRAMES_IN_FLIGHT_MAX, bundle * FRAMES_OF_BUNDLE_MAX)
    assert not stream.has_room()


@pytest.mark.parametrize(
    ("put_ms", "is_slow"),
    [
        (0, True),  # a broker of an earlier release names none: its answers took a second each
        (4, False),  # they wait for each other, not for the store
        (60, True),
    ],
)
def test_a_stream_is_slow_while_puts_are(put_ms: int, is_slow: bool) -> None:
    async def slow_after_answers() -> bool:
        broker = AnswersSome(20, put_ms=put_ms)
        stream = ProduceStream(cast(Any, broker), lambda *_: None, Producing(ProducerSettings()).call)
        running = asyncio.create_task(stream.run())
        assert not stream.is_slow
        for _ in range(4):
            stream.send(SentFrame(Frame(pb.ProduceHeader(), []), [], asyncio.get_running_loop().time(), 30.0))
        await asyncio.sleep(4.5)
        found = stream.is_slow
        stream.give_up()
        await running
        return found

    assert run_virtual(slow_after_answers) == is_slow


@virtual
async def test_a_caller_that_stops_waiting_for_an_outcome_does_not_disturb_others() -> None:
    outcome = Outcome()
    gone, first, second = (asyncio.create_task(outcome.wait()) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert not first.done()
    assert not second.done()
    outcome.settle(LedgerMQError("told by raise_error only"))
    await asyncio.gather(first, second, outcome.wait())
    assert gone.cancelled()
