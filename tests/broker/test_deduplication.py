"""Topics with `dedup.window.ms`, through clients: a message with an id is stored once within the window."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import DeadlineExceeded, InvalidConfig, InvalidRecord, ResourceExhausted
from ledgermq.protocol.naming.message_ids import MESSAGE_ID
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of

WINDOW = {"dedup.window.ms": "60000"}


async def values(client: ledgermq.Client, topic: str = "t") -> list[bytes | None]:
    async with client.consumer(topic, start="earliest", until_end=True) as consumer:
        return [message.value async for message in consumer]


@in_cluster("a:1", "b:1")
async def test_a_message_sent_again_is_stored_once_and_the_result_says_so(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4, settings=WINDOW)
        async with client.producer() as one, client.producer() as other:
            first = await one.send("t", b"one", id="order-17")
            again = await other.send("t", b"two", id=b"order-17")
            third = await other.send("t", b"three", id="order-18", key=b"k")
        assert (first.duplicate, again.duplicate, third.duplicate) == (False, True, False)
        assert again.message_id == first.message_id
        assert first.partition == partition_of_key(b"order-17", 4)
        assert third.partition == partition_of_key(b"k", 4)
        assert sorted(await values(client)) == [b"one", b"three"]
        found = [message async for message in client.consumer("t", start="earliest", until_end=True)]
        assert sorted(dict(message.headers)[MESSAGE_ID] or b"" for message in found) == [b"order-17", b"order-18"]


@in_cluster("a:1")
async def test_after_the_window_it_is_stored_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer() as producer:
            for seconds, duplicate in ((0, False), (50, True), (20, False), (5, True)):
                await asyncio.sleep(seconds)
                assert (await producer.send("t", b"v", id="a")).duplicate is duplicate
        assert len(await values(client)) == 2


@pytest.mark.parametrize("compression", ["none", "lz4", "auto"])
@in_cluster("a:1")
async def test_a_batch_keeps_its_new_records_in_order(cluster: Cluster, compression: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer(compression=compression, linger_ms=20) as producer:
            await producer.send("t", b"old", id="7")
            sent = [producer.send("t", b"%d" % (n % 10) * 100, id=str(n % 10)) for n in range(30)]
            sent += [producer.send("t", b"no id"), producer.send("t", b"new", id="new")]
            results = [await delivery for delivery in sent]
            for n, result in enumerate(results[:30]):
                assert result.duplicate == (n >= 10 or n == 7)
                assert result.offset == (0 if n % 10 == 7 else 1 + n % 10 - (n % 10 > 7))
            assert [result.offset for result in results[30:]] == [10, 11]
            assert not results[30].duplicate
            await producer.flush()
        stored = await values(client)
        assert stored == [b"old", *(b"%d" % n * 100 for n in range(10) if n != 7), b"no id", b"new"]


@in_cluster("a:1", "b:1", "c:1")
async def test_the_window_outlives_owners(cluster: Cluster) -> None:
    """Two producers send the same messages while owners are killed, and again afterwards."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 2, settings={"dedup.window.ms": "3600000"})
        names = [str(n) for n in range(60)]
        async with client.producer(linger_ms=1) as one, client.producer(linger_ms=7, compression="lz4") as other:
            sent = []
            for n, name in enumerate(names):
                sent += [one.send("t", name, id=name), other.send("t", name, id=name)]
                if n % 10 == 9:
                    one.send("t", "plain")
                await asyncio.sleep(0.03)
                if n in (20, 40):
                    await cluster.stop(await cluster.owner_of("t", n // 20 - 1), graceful=False)
            results = [await delivery for delivery in sent]
            again = [await delivery for delivery in [one.send("t", name, id=name) for name in reversed(names)]]
        assert all(result.duplicate for result in again)
        assert [result.message_id for result in reversed(again)] == [result.message_id for result in results[::2]]
        stored = [value for value in await values(client) if value != b"plain"]
        assert sorted(stored) == sorted(name.encode() for name in names)
        assert sum(result.duplicate for result in results) == len(names)
        assert len({result.message_id for result in results}) == len(names)


@in_cluster("a:1")
async def test_producers_without_sequences_leave_duplicates_out_too(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer(idempotent=False, linger_ms=5) as producer:
            sent = [producer.send("t", str(n % 3), id=str(n % 3)) for n in range(9)]
            assert [(await each).offset for each in sent] == [0, 1, 2] * 3
        assert await values(client) == [b"0", b"1", b"2"]


@in_cluster("a:1")
async def test_batches_of_arrow_data_carry_ids_as_headers(cluster: Cluster) -> None:
    headers = [[{"key": MESSAGE_ID, "value": name}] for name in (b"a", b"b", b"a")]
    table = pa.table({"value": ["1", "2", "3"], "headers": headers})
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer() as producer:
            [first] = await (await producer.send_batch("t", table))
            [again] = await (await producer.send_batch("t", table))
            assert (first.base_offset, first.record_count) == (0, 2)
            assert (again.base_offset, again.record_count) == (None, 0)
        assert await values(client) == [b"1", b"2"]


@in_cluster("a:1")
async def test_ids_that_nothing_would_look_at_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("plain", 1)
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer() as producer, client.producer(acks="received") as quick:
            with pytest.raises(InvalidRecord, match=r"set dedup\.window\.ms"):
                await producer.send("plain", b"v", id="a")
            for sender, delay in ((quick, None), (producer, 5)):
                with pytest.raises(InvalidRecord, match="acks=durable"):
                    await sender.send("t", b"v", id="a", delay=delay)
            for wrong in ("", "x" * 257):
                with pytest.raises(InvalidRecord, match="1 to 256 bytes"):
                    producer.send("t", b"v", id=wrong)
            with pytest.raises(InvalidRecord, match="both an id and the header"):
                producer.send("t", b"v", id="a", headers={MESSAGE_ID: "b"})
            forwarded = await producer.send("plain", b"v", headers={MESSAGE_ID: "a"})
            assert forwarded.offset == 0
            assert (await producer.send("t", b"v", headers={MESSAGE_ID: "a"})).offset == 0
            assert (await producer.send("t", b"v", id="a")).duplicate
            async with client.transactions("tx") as transactions, transactions.begin() as transaction:
                with pytest.raises(InvalidRecord, match="acks=durable"):
                    await transaction.send_many("t", [ledgermq.Record(b"v", id="a")])
        with pytest.raises(InvalidConfig, match="from 0 to 604800000"):
            await client.create_topic("long", 1, settings={"dedup.window.ms": "604800001"})


@in_cluster("a:1")
async def test_the_setting_counts_from_its_change_on(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client_of(cluster) as operator:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"v", headers={MESSAGE_ID: "a"})
            await operator.alter_topic("t", settings=WINDOW)
            await asyncio.sleep(1)
            with pytest.raises(InvalidRecord, match="does not recognize"):
                await producer.send("t", b"v", id="a")  # the producer does not know of it yet
            await asyncio.sleep(1)
            assert not (await producer.send("t", b"v", id="a")).duplicate
            assert (await producer.send("t", b"v", id="a")).duplicate


@in_cluster("a:1", producer_states_max=20)
async def test_ids_beyond_the_bound_wait_until_older_ones_are_over(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=WINDOW)
        async with client.producer(delivery_timeout_s=200.0) as patient:
            begun_s = asyncio.get_running_loop().time()
            for n in range(20):
                await patient.send("t", b"v", id=str(n))
            async with client.producer(delivery_timeout_s=5.0) as hasty:
                with pytest.raises((DeadlineExceeded, ResourceExhausted), match="remembers 20 ids"):
                    await hasty.send("t", b"v", id="20")
            assert (await patient.send("t", b"v", id="3")).duplicate
            await patient.send("t", b"no id")
            result = await patient.send("t", b"v", id="20")
            assert asyncio.get_running_loop().time() - begun_s >= 60
            assert result.offset == 21


@in_cluster("a:1")
async def test_spilled_messages_are_recognized_when_they_are_sent(cluster: Cluster, tmp_path: Path) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings={"dedup.window.ms": "3600000"})
        spill = ledgermq.Spill(str(tmp_path / "spill"))
        async with client.producer(spill=spill, linger_ms=20) as spilling, client.producer() as other:
            await other.send("t", b"1", id="1")
            await spilling.send("t", b"0", id="0")
            await cluster.stop("a:1", graceful=False)
            sent = [spilling.send("t", str(n), id=str(n)) for n in range(4)]
            results = [await each for each in sent]
            assert {type(result).__name__ for result in results} == {"Spilled"}
            await cluster.start("a:1")
            while spilling.spilled is not None and spilling.spilled.records:
                await asyncio.sleep(1)
        assert await values(client) == [b"1", b"0", b"2", b"3"]
