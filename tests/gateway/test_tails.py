"""Event streams that share one read of brokers: what they get, who is ended, and who shares with whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
import pytest

from ledgermq.client.consuming.consumer import Consumer
from ledgermq_gateway.records import events
from ledgermq_gateway.records.events import Tail
from tests.gateway.test_events import listening, next_data, parsed, produce, topic
from tests.gateway.world import World, raw, world
from tests.waiting import until

PATH = "/v1/topics/t/events"


def tails(at: World) -> Sequence[Tail]:
    found = {id(caller): caller for caller in at.gateway.callers._callers.values()}.values()
    return [tail for caller in found for tail in events._tails.get(caller, {}).values()]


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> list[Consumer]:
    """The consumers that are made from now on: each is a read of brokers."""
    made: list[Consumer] = []
    real = Consumer.wait_ready

    async def noted(consumer: Consumer) -> None:
        made.append(consumer)
        await real(consumer)

    monkeypatch.setattr(Consumer, "wait_ready", noted)
    return made


async def until_all_left(at: World) -> None:
    await until(lambda: not at.gateway.service.streams.count and not tails(at))
    await until(lambda: at.gateway.service.memory.held_bytes == 0)


async def test_readers_of_one_place_share_a_read(consumers: list[Consumer]) -> None:
    async with world(streams_per_principal_max=50) as at:
        await topic(at)
        async with AsyncExitStack() as stack:
            found = [await stack.enter_async_context(listening(at, PATH)) for _ in range(20)]
            for each in found:
                assert (await anext(each)).last_id
            for number in range(10):
                await produce(at, "t", {"value": str(number)})
            for each in found:
                assert [(await next_data(each)).data["value"] for _ in range(10)] == [
                    str(number) for number in range(10)
                ]
            assert len(consumers) == 1
            [tail] = tails(at)
            assert len(tail.followers) == 20
            async with listening(at, f"{PATH}?tags=eu") as other, listening(at, f"{PATH}?values=base64") as third:
                assert (await anext(other)).last_id
                assert (await anext(third)).last_id
                assert len(consumers) == 3, "what they want differs"
        await until_all_left(at)
        assert all(consumer.closed for consumer in consumers)


async def test_one_that_comes_back_takes_its_place_in_the_buffer_or_reads_alone(consumers: list[Consumer]) -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", {"value": "old"})
        async with listening(at, f"{PATH}?from=earliest") as first:
            oldest = (await anext(first)).last_id
        assert len(consumers) == 1
        async with listening(at, PATH) as stays:
            await anext(stays)
            async with listening(at, PATH) as leaves:
                await produce(at, "t", {"value": "1"})
                last_id = (await next_data(leaves)).last_id
            await produce(at, "t", {"value": "2"}, {"value": "3"})
            assert [(await next_data(stays)).data["value"] for _ in range(3)] == ["1", "2", "3"]
            async with listening(at, PATH, Last_Event_ID=last_id) as again:
                assert [(await next_data(again)).data["value"] for _ in range(2)] == ["2", "3"]
                await produce(at, "t", {"value": "4"})
                assert (await next_data(again)).data["value"] == "4"
            assert len(consumers) == 2, "it follows the one that was there"
            async with listening(at, PATH, Last_Event_ID=oldest) as alone:
                assert [(await next_data(alone)).data["value"] for _ in range(5)] == ["old", "1", "2", "3", "4"]
            assert len(consumers) == 3, "its place is in no buffer"
        await until_all_left(at)


async def test_a_slow_reader_is_ended_and_loses_nothing_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing while 20 MB come, which its connection and the buffer cannot hold."""
    monkeypatch.setattr(events, "PATIENCE_S", 0.2)
    async with world() as at:
        await topic(at)
        slow = await asyncio.open_connection("127.0.0.1", at.port, limit=2**16)
        slow[1].write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with listening(at, PATH) as quick:
            await anext(quick)
            await until(lambda: bool(tails(at)) and len(tails(at)[0].followers) == 2)
            [tail] = tails(at)
            wanted = [f"{number:03}" for number in range(100)]
            for number in wanted:
                await produce(at, "t", {"value": number + "x" * 200_000})
                assert (await next_data(quick)).data["value"].startswith(number)
                assert sum(len(piece.chunk) for piece in tail.pieces) <= events.TAIL_BYTES + 2**19
            begun = await asyncio.wait_for(slow[0].read(), 60)
            slow[1].close()
        text = begun.decode()
        seen = [line.partition('"value":"')[2][:3] for line in text.splitlines() if line.startswith("data: ")]
        assert seen == wanted[: len(seen)]
        assert len(seen) < 100
        last_id = [line for line in text.splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")
        async with listening(at, PATH, Last_Event_ID=last_id) as again:
            rest = [(await next_data(again)).data["value"][:3] for _ in range(100 - len(seen))]
        assert seen + rest == wanted
        await until_all_left(at)


async def test_no_caller_follows_what_another_one_may_read(consumers: list[Consumer]) -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "produce,consume,describe,create t")
        bob, carol = await at.user("bob", "describe t"), await at.user("carol", "consume,describe t")
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=alice)
        async with listening(at, PATH, **alice) as hers:
            await anext(hers)
            async with at.http.stream("GET", PATH, headers=bob) as response:
                if response.status_code == 200:
                    event = await anext(event async for event in parsed(response) if event.name == "problem")
                    assert event.data["status"] == 403
                else:
                    assert response.status_code == 403
            async with listening(at, PATH, **carol) as hers_too:
                await anext(hers_too)
                assert len({id(tail) for tail in tails(at)}) == 2, "each reads by her own right"


async def test_a_read_that_fails_ends_all_its_readers_and_the_next_one_begins_anew() -> None:
    async with world() as at:
        await topic(at)
        async with listening(at, PATH) as first, listening(at, PATH) as second:
            await anext(first)
            await anext(second)
            await at.http.delete("/v1/topics/t?now=true")
            for each in (first, second):
                assert (await next_data(each)).name == "problem"
        await until_all_left(at)
        refused = await at.http.get(PATH)
        assert refused.status_code in (404, 503), refused.text


async def test_a_reader_that_leaves_while_the_read_opens_leaves_it_to_the_others() -> None:
    async with world() as at, httpx.AsyncClient(base_url=at.url, timeout=60) as http:
        await topic(at)
        await raw(at.port, b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        leaving = [asyncio.create_task(http.get(PATH)) for _ in range(5)]
        await asyncio.sleep(0)
        async with listening(at, PATH) as stays:
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await anext(stays)
            await produce(at, "t", {"value": "x"})
            assert (await next_data(stays)).data["value"] == "x"
        await until_all_left(at)
