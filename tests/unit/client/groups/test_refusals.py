"""Refused messages that a member holds: each is returned once, when it is due, whatever happened to it before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ledgermq.client.consuming.reading import Reading
from ledgermq.client.groups.handlers.retry import Retry
from ledgermq.client.groups.holding.holding import Event, Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retries.moves import MovePolicy
from ledgermq.client.groups.retries.refusals import CARRY_AFTER_S, Refusals
from ledgermq.client.groups.retry_topics import ERROR_BYTES_MAX, Failures, Origin, headers_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import Expiry
from ledgermq.errors import InvalidRequest
from ledgermq.offset_stores.contract import GivenPartition
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from tests.virtual_time import virtual

COPY = tuple(headers_of(Failures("g", Origin("t", 0, 1), 1, 0, "")))


def ready(refusals: Refusals, topic: str = "t") -> Holding:
    at = TopicPartition(topic, 0)
    holding = Holding(GivenPartition(at, 1, 7), lambda _: None, lambda *_: None, refusals)
    holding.load(0, None)
    holding.reading = Reading(at, 1, 0, Backoff(Sources(), 0.001, 0.001))
    holding.advance(Event.ANNOUNCE)
    holding.advance(Event.BEGIN)
    holding.progress.hand_out(0, 10)
    return holding


def delivered(holding: Holding, offset: int) -> GroupMessage:
    at = holding.partition
    return holding.handout().kind(at.topic, at.partition, offset, None, b"value", COPY, None, None)


def with_levels() -> Refusals:
    expiry = Expiry(lambda topic: None, lambda: 0)
    return Refusals(moves=MovePolicy("g", Retry.levels(), Sources(), 10, 1000, expiry, keeps_expired=False))


def raised_in_a_thread(call: Callable[[], object]) -> list[Exception]:
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


@virtual
async def test_a_message_that_is_read_again_is_returned_once_after_its_new_delay() -> None:
    holding = ready(Refusals())
    assert delivered(holding, 5).nack(delay=10)
    assert holding.roll_back(5, holding.progress.generation, 0.0)
    holding.progress.hand_out(5, 10)
    assert delivered(holding, 5).nack(delay=60)
    assert holding.take_again(30.0) is None, "the first delay no longer counts"
    again = holding.take_again(60.0)
    assert again is not None
    assert again.offset == 5
    assert holding.take_again(1000.0) is None
    assert holding.waiting.bytes == 0


@virtual
async def test_a_copy_that_the_program_gave_back_is_not_carried() -> None:
    """It was due, and its handler had not begun it when the handlers were stopped."""
    holding = ready(with_levels(), "g.retry")
    for offset, delay_s in ((1, 0.0), (3, 3600.0)):
        holding.hold(delivered(holding, offset), delay_s)
    again = holding.take_again(0.0)
    assert again is not None
    again.handout.give_back(again.offset)
    for offset in (0, 2, 4):
        assert delivered(holding, offset).ack()
    holding.carry(0.0)
    holding.carry(CARRY_AFTER_S)
    assert holding.to_commit == 1, "it is not finished"
    assert [move.message.offset for move in holding.moves.below(10)] == []


@virtual
async def test_a_thread_learns_that_a_message_cannot_be_a_dead_letter() -> None:
    """A handler that is not asynchronous would return, and the message would be acknowledged."""
    message = delivered(ready(Refusals()), 0)
    [error] = raised_in_a_thread(lambda: message.dead_letter("no use"))
    assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize("delay", [float("nan"), float("inf")])
@virtual
async def test_a_delay_that_is_no_time_is_refused(delay: float) -> None:
    message = delivered(ready(with_levels()), 0)
    with pytest.raises(InvalidRequest, match="delay"):
        message.nack(delay)
    [error] = raised_in_a_thread(lambda: message.nack(delay))
    assert isinstance(error, InvalidRequest)


@virtual
async def test_a_long_error_is_not_held_in_memory() -> None:
    holding = ready(with_levels())
    message = delivered(holding, 0)
    assert message.handout.fail(message, "x" * 1_000_000)
    [move] = holding.moves.below(1)
    assert len(move.failures.error) == ERROR_BYTES_MAX
