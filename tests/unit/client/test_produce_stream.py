"""The stream of produce requests: which deadline counts, what ends it.

And the outcome that its answers settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from ledgermq.client.producing.delivery import Outcome
from ledgermq.client.producing.dispatching.produce_stream import Answer, ProduceStream, SentFrame
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

    def __init__(self, answers: int, *, ends: bool = False) -> None:
        self._answers = answers
        self._ends = ends

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for _ in requests:
            if not self._answers:
                if self._ends:
                    return
                await asyncio.Event().wait()
            self._answers -= 1
            await asyncio.sleep(1)
            yield pb.ProduceResponse()

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
