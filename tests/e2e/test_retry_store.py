"""`Retry.metaq` on brokers in virtual time: what keeps failing is stored beside the handler, and recovered."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import ledgermq
from ledgermq import Retry, errors
from ledgermq.client.groups.handlers.recovering.local_store import LocalStore
from ledgermq.errors import StoreFull
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.retrying import Calls, now_s, running
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_metaq_tries_five_times_then_stores_and_recovers_every_five_minutes(
    cluster: Cluster, tmp_path: Path
) -> None:
    calls = Calls(2, 3)
    attempts: list[tuple[int, int]] = []

    def on_failure(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
        attempts.append((message.offset, attempt))

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)
        retry = Retry.metaq(store=tmp_path / "g.retry")
        handler = client.handler("t", group="g", ordered_by=None, retry=retry, on_failure=on_failure)(calls)
        async with running(client):
            await until(lambda: handler.stored == 2 and calls.done.total() == 4)
            assert calls.waits(2) == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=0.05)
            await asyncio.sleep(10)
            assert await committed(cluster, "g", "t") == {0: 6}, "the offset moves on"
            await asyncio.sleep(620)
            assert len(calls.at_s[0, 2]) == 7
            assert calls.waits(2)[-1] == pytest.approx(300, abs=1)
            assert [attempt for offset, attempt in attempts if offset == 3] == [1, 2, 3, 4, 5, 6, 7]
            calls.poison.clear()
            await until(lambda: handler.stored == 0, timeout_s=400)
        assert set(calls.done.values()) == {1}
        assert calls.done.total() == 6


@in_cluster("a:1")
async def test_metaq_recovers_at_the_start_and_gives_the_message_as_it_was(cluster: Cluster, tmp_path: Path) -> None:
    retry = Retry.metaq(store=tmp_path / "g.retry", attempts=1)
    seen: list[ledgermq.GroupMessage] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"v", key=b"k", headers={"a": b"1", "b": None}, tag="x", timestamp=5_000_000)
            await producer.send("t", None, key=b"")

        async def fail(message: ledgermq.GroupMessage) -> None:
            raise ZeroDivisionError

        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(fail)
        async with running(client):
            await until(lambda: handler.stored == 2)
    async with client_of(cluster) as client:

        async def take(message: ledgermq.GroupMessage) -> None:
            assert message.ack()
            seen.append(message)
            raise ZeroDivisionError  # too late: it is acknowledged

        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(take)
        begun_s = now_s()
        async with running(client):
            await until(lambda: len(seen) == 2 and handler.stored == 0)
        assert now_s() - begun_s < 60
    assert [tuple(message) for message in seen] == [
        ("t", 0, 0, b"k", b"v", (("a", b"1"), ("b", None)), 5_000_000, "x"),
        ("t", 0, 1, b"", None, (), seen[1].timestamp_us, None),
    ]


@in_cluster("a:1")
async def test_a_message_that_is_stored_is_not_handled_when_it_is_delivered_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    retry = Retry.metaq(store=tmp_path / "g.retry", attempts=2)
    calls = Calls(1)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(calls)
        async with running(client):
            await until(lambda: handler.stored == 1 and calls.done.total() == 2)
        assert await committed(cluster, "g", "t") == {0: 3}
        planned = await client.groups.plan_reset("g", "earliest")
        assert not await client.groups.reset("g", planned)  # as after a crash before the commit
        async with running(client):
            await until(lambda: calls.done[0, 2] == 2)
            await asyncio.sleep(60)
            assert await committed(cluster, "g", "t") == {0: 3}
            assert len(calls.at_s[0, 1]) == 3, "two calls in place, and the recovery at the second start"
            assert handler.stored == 1


@in_cluster("a:1")
async def test_a_message_is_refused_for_good_after_recoveries_max(cluster: Cluster, tmp_path: Path) -> None:
    calls = Calls(0, 1)
    refused: list[int] = []

    def reject(message: ledgermq.GroupMessage, error: Exception) -> None:
        refused.append(message.offset)
        if len(refused) == 1:
            raise OSError("not now")

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        retry = Retry.metaq(attempts=1, store=tmp_path / "g", recover_every_s=100, recoveries_max=2, then=reject)
        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(calls)
        async with running(client):
            await until(lambda: handler.stored == 2)
            await until(lambda: handler.stored == 1, timeout_s=400)
            assert refused == [0, 1], "the function failed at the first one, which stays stored"
            await until(lambda: handler.stored == 0, timeout_s=400)
        assert refused == [0, 1, 0]
        assert {place: len(times) for place, times in calls.at_s.items()} == {(0, 0): 4, (0, 1): 3, (0, 2): 1}
        assert handler.exhausted == 2


@in_cluster("a:1")
async def test_a_message_that_cannot_be_stored_is_retried_in_place_and_not_acknowledged(
    cluster: Cluster, tmp_path: Path
) -> None:
    calls = Calls(0, 2)
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10)
        retry = Retry.metaq(attempts=2, store=tmp_path / "g", messages_max=1, recover_every_s=1000, reorders=True)
        handler = client.handler("t", group="g", concurrency=2, retry=retry)(calls)
        async with running(client):
            await until(lambda: handler.stored == 1 and calls.done[1, 4])
            await asyncio.sleep(60)
            assert isinstance(handler.last_error, errors.ResourceExhausted | ZeroDivisionError)
            assert await committed(cluster, "g", "t") == {0: 2, 1: 5}, "only its own lane waits"
            assert len(calls.at_s[0, 2]) > 10
            calls.poison.discard(2)
            await until(lambda: calls.done[0, 4])
            assert handler.stored == 1


@in_cluster("a:1")
async def test_a_stored_message_is_not_kept_back_by_one_that_finds_no_room(cluster: Cluster, tmp_path: Path) -> None:
    calls = Calls(0, 2)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        retry = Retry.metaq(attempts=2, store=tmp_path / "g", messages_max=1, recover_every_s=20, reorders=True)
        handler = client.handler("t", group="g", retry=retry)(calls)
        async with running(client):
            await until(lambda: handler.stored == 1 and len(calls.at_s[0, 2]) > 6)
            calls.poison.discard(0)
            await until(lambda: calls.done[0, 0])
            await until(lambda: calls.done[0, 4])
            assert handler.stored == 1, "the other one, for which there is room now"
            assert sorted(offset for _, offset in calls.done) == [0, 1, 3, 4]


@in_cluster("a:1")
async def test_a_stored_message_takes_its_turn_in_its_lane_and_a_hanging_one_keeps_no_other_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    running_now: Counter[bytes] = Counter()
    most = 0
    hung, calls = asyncio.Event(), Counter[int]()

    async def handle(message: ledgermq.GroupMessage) -> None:
        nonlocal most
        key = message.key or b""
        running_now[key] += 1
        most = max(most, running_now[key])
        calls[message.offset] += 1
        try:
            await asyncio.sleep(3)
            if calls[message.offset] == 1 and message.offset < 4:
                raise ZeroDivisionError
            if message.offset == 0:
                await hung.wait()
        finally:
            running_now[key] -= 1

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(12):
                await producer.send("t", b"", key=b"%d" % (number % 4))
        retry = Retry.metaq(attempts=1, store=tmp_path / "g", recover_every_s=2, reorders=True)
        handler = client.handler("t", group="g", ordered_by="key", concurrency=3, retry=retry)(handle)
        async with running(client):
            await until(lambda: calls.total() == 16 and handler.stored == 1, timeout_s=200)
            hung.set()
            await until(lambda: handler.stored == 0)
        assert most == 1, "one call of a key at a time"
        assert calls == {offset: 2 if offset < 4 else 1 for offset in range(12)}


@in_cluster("a:1")
async def test_a_handled_message_that_cannot_be_removed_is_not_handled_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(0)
    is_full = True
    remove = LocalStore.remove

    async def remove_if_there_is_room(store: LocalStore, key: tuple[int, int, int]) -> None:
        if is_full:
            raise StoreFull("no space is left")
        await remove(store, key)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "remove", remove_if_there_is_room)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        retry = Retry.metaq(attempts=1, store=tmp_path / "g", recover_every_s=10)
        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(calls)
        async with running(client):
            await until(lambda: handler.stored == 1)
            calls.poison.clear()
            await until(lambda: calls.done[0, 0])
            await asyncio.sleep(55)
            assert handler.stored == 1
            is_full = False
            await until(lambda: handler.stored == 0)
        assert calls.done == {(0, 0): 1}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ordered_by", ["key", None])
def test_none_is_lost_while_handlers_fail_stop_are_cancelled_and_partitions_move(
    ordered_by: str | None, seed: int, tmp_path: Path
) -> None:
    """Each member has its own store, and no two calls of a key run in one member."""

    @in_cluster("a:1", "b:1")
    async def scenario(cluster: Cluster) -> None:
        random = Random(seed)
        done: set[tuple[int, int]] = set()
        stored, together = 0, 0

        async def member(number: int) -> None:
            nonlocal stored, together
            is_left = True
            while len(done) < 200 or is_left:
                running_now: Counter[object] = Counter()

                async def handle(message: ledgermq.GroupMessage, running_now: Counter[object] = running_now) -> None:
                    nonlocal together
                    running_now[message.partition, message.key] += 1
                    together = max(together, *running_now.values())
                    try:
                        await asyncio.sleep(random.choice((0, 0.01, 0.2)))
                        if random.random() < 0.3:
                            raise ZeroDivisionError
                    finally:
                        running_now[message.partition, message.key] -= 1
                    done.add((message.partition, message.offset))

                retry = Retry.metaq(2, store=tmp_path / str(number), wait_ms_step=50, recover_every_s=1, reorders=True)
                async with client_of(cluster) as client:
                    settings = {"revoke_wait_s": random.choice((0, 5)), "commit_interval_ms": random.choice((50, 5000))}
                    handler = client.handler(
                        "t", group="g", concurrency=4, ordered_by=ordered_by, retry=retry, **settings
                    )(handle)
                    stop = asyncio.Event()
                    running = asyncio.create_task(client.run_handlers(stop=stop))
                    await asyncio.wait([running], timeout=random.uniform(1, 6))
                    stop.set() if random.random() < 0.5 else running.cancel()
                    await asyncio.wait([running])
                    assert running.cancelled() or running.exception() is None
                    stored += handler.stored
                    is_left = handler.stored > 0

        async with client_of(cluster) as client:
            await client.create_topic("t", 4)
            async with client.producer() as producer:
                for number in range(200):
                    producer.send("t", b"", key=b"%d" % random.randrange(6), partition=number % 4)
            async with asyncio.timeout(3600):
                await asyncio.gather(*(member(number) for number in range(3)))
        assert done == {(number % 4, number // 4) for number in range(200)}
        assert stored, "some were in a store when their member ended"
        assert ordered_by is None or together == 1

    scenario()  # type: ignore[unused-coroutine]


@in_cluster("a:1")
async def test_a_second_handler_or_another_group_is_refused_the_store(cluster: Cluster, tmp_path: Path) -> None:
    retry = Retry.metaq(store=tmp_path / "g.retry")
    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(Calls())
        other.handler("t", group="g", ordered_by=None, retry=retry)(Calls())
        async with running(client):
            await until(lambda: handler.handled == 1)
            with pytest.raises(errors.UsedElsewhere, match="its own file"):
                await other.run_handlers()
    async with client_of(cluster) as client:
        client.handler("t", group="other", ordered_by=None, retry=retry)(Calls())
        with pytest.raises(errors.InvalidConfig, match="belongs to"):
            await client.run_handlers()


@in_cluster("a:1")
async def test_an_end_waits_for_a_call_with_a_stored_message_and_no_longer_than_asked(
    cluster: Cluster, tmp_path: Path
) -> None:
    stop = asyncio.Event()

    async def handle(message: ledgermq.GroupMessage) -> None:
        calls.append(message.offset)
        if len(calls) == 1:
            raise ZeroDivisionError
        stop.set()
        await asyncio.Event().wait()

    calls: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        retry = Retry.metaq(attempts=1, store=tmp_path / "g.retry", recover_every_s=1)
        handler = client.handler("t", group="g", ordered_by=None, retry=retry)(handle)
        with pytest.raises(errors.DeadlineExceeded, match="1 calls with stored messages"):
            await client.run_handlers(stop=stop, drain_timeout_s=5)
        assert handler.stored == 1
        assert await committed(cluster, "g", "t") == {0: 1}
