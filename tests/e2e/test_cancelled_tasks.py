"""Code of the program cancels all tasks of the event loop, the client's own ones among them: callers get a typed
error, and never a CancelledError, which would end them silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ledgermq
from ledgermq.errors import Closed, LedgerMQError
from ledgermq.runtime.tasks import shared

AT_ONCE_S = 20.0


async def typed(call: Callable[[], Awaitable[Any]]) -> type[BaseException] | None:
    """Return the kind of the error, None without one. Fails for CancelledError, and for a call that waits."""
    try:
        async with asyncio.timeout(AT_ONCE_S):
            await call()
    except LedgerMQError as error:
        return type(error)
    return None


async def test_each_object_says_that_its_task_was_cancelled() -> None:
    async with ledgermq.connect("memory://cancelled", timeout_s=5) as client:
        await client.create_topic("t", 1)
        await client.create_topic("k", 1, {"cleanup.policy": "compact"})
        producer, consumer, member = client.producer(), client.consumer("t"), client.consumer("t", group="g")
        await producer.send("t", b"1")
        await consumer.fetch()
        await member.fetch()
        table = client.table("k")
        await table.wait_caught_up()
        pending = producer.send("t", b"2")
        broker = _tasks_of_the_broker()
        present = asyncio.current_task()
        for task in asyncio.all_tasks() - broker - {present}:
            task.cancel()
        await asyncio.sleep(0)
        assert await typed(lambda: pending) is Closed
        for call in (
            lambda: producer.send("t", b"3"),
            producer.flush,
            consumer.fetch,
            member.fetch,
            table.wait_caught_up,
        ):
            assert await typed(call) is Closed, call
        async with client.producer() as another:
            await another.send("t", b"4")
        for each in (producer, consumer, member, table):
            await each.close()


def _tasks_of_the_broker() -> set[asyncio.Task[Any]]:
    """The embedded broker shares the loop; its end is another matter."""
    return {task for task in asyncio.all_tasks() if not task.get_name().startswith("ledgermq")}


async def test_one_who_waits_for_a_shared_task_is_told_from_the_task() -> None:
    never = asyncio.Event()
    task = asyncio.create_task(never.wait())
    waiting = asyncio.create_task(shared(task, "a look-up"))
    given_up = asyncio.create_task(shared(task, "a look-up"))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert not task.done()
    task.cancel()
    with pytest.raises(Closed, match="a look-up was cancelled from outside"):
        await waiting
