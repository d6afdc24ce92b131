"""The producer's bound in bytes: admission before queueing, waiting or failing as set."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client.producing.buffering import send_buffer
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import DeadlineExceeded, ResourceExhausted
from tests.virtual_time import virtual


def buffer(**settings: object) -> SendBuffer:
    return SendBuffer(ProducerSettings(buffer_bytes_max=100, **settings))  # type: ignore[arg-type]


def test_waiting_sends_have_their_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_buffer, "WAITING_BYTES_MAX", 50)
    waiting = buffer()
    waiting.admit(100)
    waiting.admit(50)
    with pytest.raises(ResourceExhausted, match="send_many"):
        waiting.admit(1)
    assert waiting.held_bytes == 150


def test_failing_sends_have_the_buffer_alone() -> None:
    failing = buffer(when_full="fail")
    failing.admit(100)
    with pytest.raises(ResourceExhausted):
        failing.admit(1)
    failing.release(100)
    failing.admit(1)


def test_a_record_larger_than_the_buffer_is_taken_alone() -> None:
    alone = buffer(when_full="fail")
    alone.admit(1000)
    with pytest.raises(ResourceExhausted):
        alone.admit(1)


@virtual
async def test_waiters_go_on_when_there_is_room() -> None:
    full = buffer()
    full.admit(100)
    waiters = [asyncio.create_task(full.wait_for_room(60)) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(waiter.done() for waiter in waiters)
    full.release(50)
    await asyncio.sleep(1)
    assert not any(waiter.done() for waiter in waiters)
    full.release(10)
    await asyncio.gather(*waiters)


@virtual
async def test_waiting_has_a_deadline() -> None:
    full = buffer(delivery_timeout_s=5)
    full.admit(100)
    with pytest.raises(DeadlineExceeded):
        await full.wait_for_room()
    assert asyncio.get_running_loop().time() == pytest.approx(5)
