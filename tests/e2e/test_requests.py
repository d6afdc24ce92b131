"""Requests and replies between clients, in virtual time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import ledgermq
import ledgermq.sync
from ledgermq.client.producing.producer import Producer
from ledgermq.client.requests import IN_REPLY_TO, REPLIES_TOPIC, REPLY_TO
from ledgermq.errors import DeadlineExceeded, InvalidConfig, InvalidRequest, NoReply, Unavailable, UnknownTopic
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of


@asynccontextmanager
async def echoing(client: ledgermq.Client, **settings: object) -> AsyncIterator[ledgermq.Consumer]:
    """A program that answers every request of topic "t" with its value, reversed."""
    consumer = client.consumer("t", **settings)

    async def work() -> None:
        async for message in consumer:
            with suppress(UnknownTopic):  # nobody waits for the reply: the topic of replies is deleted
                await message.reply(message.value[::-1], headers={"of": message.value})

    working = asyncio.create_task(work())
    try:
        yield consumer
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await consumer.close()


@in_cluster("a:1", "b:1")
async def test_each_request_gets_its_own_reply(cluster: Cluster) -> None:
    async with client_of(cluster) as asking, client_of(cluster) as other, client_of(cluster) as answering:
        await answering.create_topic("t", 4)
        async with echoing(answering):
            replies = await asyncio.gather(
                *(client.request("t", b"%05d" % number) for number in range(50) for client in (asking, other))
            )
            values = [b"%05d" % number for number in range(50) for _ in range(2)]
            assert [reply.value for reply in replies] == [value[::-1] for value in values]
            assert [dict(reply.headers)["of"] for reply in replies] == values
            assert {reply.topic for reply in replies} == {REPLIES_TOPIC}
            reply = await asking.request("t", "text", key=b"k", headers={"h": b"1"}, tag="a", partition=2)
            assert reply.value == b"txet"
        sent = [message async for message in asking.consumer("t", partitions=[2], until_end=True)][-1]
        assert (sent.key, sent.tag, sent.partition) == (b"k", "a", 2)
        assert [name for name, _ in sent.headers if name in ("h", REPLY_TO)] == [REPLY_TO, "h"]
        described = await asking.describe_topic(REPLIES_TOPIC)
        assert described.settings["retention.ms"] == "3600000"


@pytest.mark.parametrize("kind", ["group", "queue", "handler", "interceptors"])
def test_all_kinds_of_consumers_reply(kind: str) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with client_of(cluster) as asking, client_of(cluster) as answering:
            await answering.create_topic("t", 2)

            @answering.handler("t", group="g")
            async def handle(message: ledgermq.GroupMessage) -> None:
                await message.reply(b"handled " + message.value)

            async def of_queue() -> None:
                async with answering.queue("t", group="g") as queue:
                    async for message in queue:
                        await message.reply(b"handled " + message.value)
                        message.ack()

            async def of_consumer(**settings: object) -> None:
                async with answering.consumer("t", **settings) as consumer:
                    async for message in consumer:
                        await message.reply(b"handled " + message.value)

            working = asyncio.create_task(
                {
                    "group": lambda: of_consumer(group="g"),
                    "queue": of_queue,
                    "handler": answering.run_handlers,
                    "interceptors": lambda: of_consumer(interceptors=[lambda message: message._replace(tag="seen")]),
                }[kind]()
            )
            try:
                replies = await asyncio.gather(
                    *(asking.request("t", b"%d" % number, timeout=60) for number in range(10))
                )
                assert [reply.value for reply in replies] == [b"handled %d" % number for number in range(10)]
            finally:
                working.cancel()
                with suppress(asyncio.CancelledError):
                    await working

    run()


@in_cluster("a:1")
async def test_without_a_reply_the_error_says_so_and_a_late_one_disturbs_nothing(cluster: Cluster) -> None:
    async with client_of(cluster) as asking, client_of(cluster) as answering:
        await answering.create_topic("t", 1)
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(NoReply, match=r"no reply to a request in topic 't' within 3 s") as raised:
            await asking.request("t", b"nobody", timeout=3)
        assert isinstance(raised.value, DeadlineExceeded)
        assert 3 <= asyncio.get_running_loop().time() - begun_s < 3.5
        consumer = answering.consumer("t")
        waiting = asyncio.create_task(asking.request("t", b"slow", timeout=3))
        message = await anext(consumer)
        assert message.value == b"slow", "the first one has expired"
        with pytest.raises(NoReply):
            await waiting
        assert (await message.reply(b"late")).topic == REPLIES_TOPIC
        waiting = asyncio.create_task(asking.request("t", b"twice", timeout=30))
        message = await anext(consumer)
        for value in (b"first", b"second"):
            await message.reply(value)
        assert (await waiting).value == b"first"
        cancelled = asyncio.create_task(asking.request("t", b"cancelled", timeout=30))
        message = await anext(consumer)
        cancelled.cancel()
        await message.reply(b"of the cancelled one")
        waiting = asyncio.create_task(asking.request("t", b"next", timeout=30))
        await (await anext(consumer)).reply(b"of the next")
        assert (await waiting).value == b"of the next"
        await consumer.close()


@in_cluster("a:1", "b:1", "c:1")
async def test_requests_go_on_while_owners_are_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as asking, client_of(cluster) as answering:
        await answering.create_topic("t", 2)
        async with echoing(answering):
            for number in range(30):
                value = b"%05d" % number
                assert (await asking.request("t", value, timeout=60)).value == value[::-1]
                if number in (5, 15):
                    await cluster.stop(await cluster.owner_of("t", number % 2), graceful=False)
                    await cluster.start(f"new-{number}:1")


@in_cluster("a:1")
async def test_what_is_no_request_cannot_be_replied_to(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        forged = [b"", b"1/x/y", b"0/" + b"i" * 33 + b"/" + b"0" * 32, b"-1/i" + b"0" * 32 + b"/" + b"0" * 32]
        async with client.producer() as producer:
            await producer.send("t", b"plain")
            for header in forged:
                await producer.send("t", b"forged", headers={REPLY_TO: header})
            await producer.send("t", b"far", headers={REPLY_TO: b"999/i" + b"0" * 32 + b"/" + b"0" * 32})
        messages = await client.consumer("t").fetch()
        for message in messages[:-1]:
            with pytest.raises(InvalidRequest, match="the message is no request"):
                message.reply(b"v")
        with pytest.raises(UnknownTopic):
            await messages[-1].reply(b"v")
        copy = pickle.loads(pickle.dumps(messages[0]))
        assert copy == messages[0]
        assert type(copy) is ledgermq.Message
        with pytest.raises(InvalidRequest, match="a client of this process"):
            copy.reply(b"v")
        for timeout in (0, -1, 1801, float("nan"), float("inf")):
            with pytest.raises(InvalidConfig, match="timeout must be above 0 and at most 1800 seconds"):
                await client.request("t", b"v", timeout=timeout)


@in_cluster("a:1")
async def test_errors_of_the_request_itself_are_raised_at_once(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        with pytest.raises(UnknownTopic):
            await client.request("nowhere", b"v")
        await client.create_topic("t", 1)
        waiting = asyncio.create_task(client.request("t", b"v", timeout=1000))
        await asyncio.sleep(1)
        await client.delete_topic(REPLIES_TOPIC)
        with pytest.raises(Unavailable, match="replies cannot be read"):
            await waiting
        await asyncio.sleep(60)
        async with echoing(client):
            assert (await client.request("t", b"12", timeout=60)).value == b"21"
        waiting = asyncio.create_task(client.request("t", b"v", timeout=1000))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(Unavailable, match="the client was closed"):
            await waiting


@pytest.mark.parametrize("stands_still", [False, True])
@in_cluster("a:1", heartbeat_interval_ms=2000, holding_ms=12_000)
async def test_nothing_is_left_of_a_request_whose_time_is_over(cluster: Cluster, stands_still: bool) -> None:
    """The producer would try to store it for two minutes, and closing the client would wait for that."""
    clock_s = asyncio.get_running_loop().time
    async with client_of(cluster) as answering, AsyncExitStack() as stack:
        await answering.create_topic("t", 1)
        asking = await stack.enter_async_context(client_of(cluster))
        async with echoing(answering):
            assert (await asking.request("t", b"12")).value == b"21"
        if stands_still:
            cluster.views["a:1"].pause()
        else:
            await cluster.stop("a:1", graceful=False)
        begun_s = clock_s()
        with pytest.raises(NoReply, match="no reply to a request in topic 't' within 3 s"):
            await asking.request("t", b"late", timeout=3)
        assert 2.7 <= clock_s() - begun_s < 3.1
        begun_s = clock_s()
        await stack.aclose()
        assert clock_s() - begun_s < 15
        if stands_still:
            cluster.views["a:1"].resume()
        else:
            await cluster.start("a:1")
            assert await cluster.read_all("t", 0) == [b"12"]


@in_cluster("a:1", heartbeat_interval_ms=2000, holding_ms=12_000)
async def test_the_reply_to_a_request_that_is_in_doubt_still_counts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time to be stored ends a little before that of the request."""
    true = Producer.send

    def hurried(self: Producer, *given: Any, **named: Any) -> ledgermq.Delivery:
        named["timeout"] = named["timeout"] * 0.92 if "timeout" in named else None
        return true(self, *given, **named)

    async with client_of(cluster) as asking, client_of(cluster) as answering:
        await answering.create_topic("t", 1)
        async with echoing(answering):
            await asking.request("t", b"first")
            monkeypatch.setattr(Producer, "send", hurried)
            cluster.views["a:1"].pause()
            waiting = asyncio.create_task(asking.request("t", b"12", timeout=20))
            await asyncio.sleep(18.6)
            assert not waiting.done()
            cluster.views["a:1"].resume()
            assert (await waiting).value == b"21"


@in_cluster("a:1")
async def test_a_client_reads_only_its_own_replies(cluster: Cluster) -> None:
    async with client_of(cluster) as asking, client_of(cluster) as answering:
        await answering.create_topic(REPLIES_TOPIC, 1)
        await answering.create_topic("t", 1)
        async with echoing(answering):
            await asyncio.gather(*(client.request("t", b"12") for client in (asking, answering)))
        replies = [message async for message in asking.consumer(REPLIES_TOPIC, until_end=True)]
        assert len({message.tag for message in replies}) == 2
        assert all(dict(message.headers)[IN_REPLY_TO] for message in replies)


def test_the_synchronous_client_requests_and_replies(tmp_path: Path) -> None:
    with ledgermq.sync.connect(tmp_path.as_uri()) as client:
        client.create_topic("t", partitions=1)

        def reply(message: ledgermq.Message) -> None:
            assert client.reply(message, message.value[::-1]).topic == REPLIES_TOPIC

        listener = client.listen("t", reply, group="g")
        assert client.request("t", b"12", timeout=60).value == b"21"
        listener.close()
        with pytest.raises(NoReply):
            client.request("t", b"12", timeout=0.5)
