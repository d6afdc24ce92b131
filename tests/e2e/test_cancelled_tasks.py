"""Code of the program cancels all tasks of the event loop, the client's own ones among them: callers get a typed
error, and never a CancelledError, which would end them silently. A function of the program that raises
CancelledError by itself, because what it awaited was cancelled, has failed as by any error.
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


async def test_half_messages_go_on_without_a_producer_and_say_that_checks_are_no_longer_answered() -> None:
    async with ledgermq.connect("memory://cancelled-halves") as client:
        await client.create_topic("t", 1)
        half = client.half_messages("checkers", check=lambda message: "commit")
        await half.start()
        await (await half.send("t", b"1")).commit()
        for name, works in (("ledgermq producer", True), ("ledgermq checks of checkers", False)):
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == name]
            assert tasks
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0.1)
            if works:
                await (await half.send("t", b"2")).commit()
        with pytest.raises(Closed, match="checks of group 'checkers' was cancelled from outside"):
            await half.send("t", b"3")
        await half.close()


async def awaits_what_is_cancelled() -> None:
    other = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


@pytest.mark.parametrize(
    ("queue", "settings"),
    [(False, {}), (False, {"batch": True}), (False, {"transactional": True}), (True, {}), (True, {"batch": True})],
    ids=["handler", "batch", "transactional", "queue", "queue batch"],
)
async def test_a_function_that_raises_cancelled_error_has_failed(queue: bool, settings: dict[str, Any]) -> None:
    async with ledgermq.connect("memory://cancelling") as client:
        topic = f"t-{queue}-{'-'.join(settings)}"
        await client.create_topic(topic, 1)
        async with client.producer() as producer:
            await (await producer.send_many(topic, [b"0", b"1"]))
        failures: list[Exception] = []
        handled: set[bytes] = set()
        stop = asyncio.Event()

        async def on_failure(message: Any, error: Exception, attempt: int) -> None:
            failures.append(error)
            await awaits_what_is_cancelled()

        async def handle(given: Any) -> None:
            for message in given if isinstance(given, list) else [given]:
                if message.value == b"0" and not failures:
                    await awaits_what_is_cancelled()
                handled.add(message.value)
            if handled == {b"0", b"1"}:
                stop.set()

        kind: Any = client.queue_handler if queue else client.handler
        wait = {"wait_ms_first": 10} if queue else {"retry_ms_first": 10}
        kind(topic, group="g", on_failure=on_failure, **wait, **settings)(handle)
        async with asyncio.timeout(AT_ONCE_S):
            await client.run_handlers(stop=stop)
        assert stop.is_set(), "run_handlers ends because it is stopped"
        assert [type(error) for error in failures] == [RuntimeError]
        assert isinstance(failures[0].__cause__, asyncio.CancelledError)


@pytest.mark.parametrize(
    ("queue", "settings"),
    [(False, {}), (False, {"transactional": True}), (True, {})],
    ids=["group", "transaction", "queue"],
)
async def test_a_function_in_a_thread_that_raises_stop_iteration_has_failed(
    queue: bool, settings: dict[str, Any]
) -> None:
    async with ledgermq.connect("memory://stopping") as client:
        topic = f"t-{queue}-{'-'.join(settings)}"
        await client.create_topic(topic, 1)
        async with client.producer() as producer:
            await producer.send(topic, b"0")
        loop, stop, calls = asyncio.get_running_loop(), asyncio.Event(), []

        def handle(message: Any) -> None:
            calls.append(message)
            if len(calls) == 1:
                next(iter(()))
            loop.call_soon_threadsafe(stop.set)

        kind: Any = client.queue_handler if queue else client.handler
        wait = {"wait_ms_first": 10} if queue else {"retry_ms_first": 10}
        made = kind(topic, group="g", **wait, **settings)(handle)
        async with asyncio.timeout(AT_ONCE_S):
            await client.run_handlers(stop=stop)
        assert (made.failures, len(calls)) == (1, 2)
        assert "StopIteration" in str(made.last_error)


async def test_callbacks_that_raise_cancelled_error_have_failed() -> None:
    async with ledgermq.connect("memory://cancelled-callbacks") as client:
        await client.create_topic("t", 1)

        async def on_assigned(partitions: object) -> None:
            await awaits_what_is_cancelled()

        async with client.consumer("t", group="g", on_assigned=on_assigned) as member:
            with pytest.raises(LedgerMQError, match=r"on_assigned failed.*CancelledError"):
                await member.fetch(timeout=AT_ONCE_S)


async def test_who_cancels_a_handler_still_cancels_it() -> None:
    async with ledgermq.connect("memory://cancelling-handlers") as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"0")
        begun = asyncio.Event()

        @client.handler("t", group="g")
        async def handle(message: ledgermq.GroupMessage) -> None:
            begun.set()
            await asyncio.sleep(1000)

        running = asyncio.create_task(client.run_handlers())
        await asyncio.wait_for(begun.wait(), AT_ONCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert handle.failures == 0


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
