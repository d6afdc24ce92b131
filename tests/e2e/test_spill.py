"""A producer that keeps in a local file what it cannot deliver, in virtual time: nothing is lost, the order of
each partition holds, also across processes, and what was on its way is stored once.
"""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq import Spill, Spilled, SpilledBatch
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import DeadlineExceeded, MessageTooLarge, Unavailable
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.own_network import OwnNetwork
from tests.e2e.spilling import SETTINGS, cut_off, emptied, spill_below, state_of, values
from tests.worlds.consumed import read_values

spill = pytest.fixture(spill_below)


@in_cluster("a:1", "b:1")
async def test_what_cannot_be_delivered_is_spilled_and_sent_in_order_later(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 2)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            stored = await producer.send("t", b"0", partition=0)
            assert (type(stored), stored.offset) == (ledgermq.SendResult, 0)
            await cut_off(own)
            begun = asyncio.get_running_loop().time()
            results = await asyncio.gather(*(producer.send("t", value, partition=0) for value in values(1, 20)))
            assert 4 < asyncio.get_running_loop().time() - begun < 8
            assert {type(result) for result in results} == {Spilled}
            assert {result[:3] for result in results} == {("t", 0, None)}
            begun = asyncio.get_running_loop().time()
            assert isinstance(await producer.send("t", b"20", partition=0), Spilled)
            assert asyncio.get_running_loop().time() - begun < 1, "behind spilled records, at once"
            await producer.flush()
            state = state_of(producer)
            assert (state.records, state.partitions, state.spilled, state.resent) == (20, 1, 20, 0)
            assert state.bytes > 0
            assert state.last_error is not None
            own.heal()
            await emptied(producer)
            assert state_of(producer)[:5] == (0, 0, 0, 20, 20)
            result = await producer.send("t", b"21", partition=0)
            assert result.offset == 21
        assert await read_values(client, "t") == {0: values(0, 22), 1: []}


@in_cluster("a:1")
async def test_the_next_process_sends_what_is_in_the_file_before_its_own(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            for value in values(1, 10):
                producer.send("t", value)
        assert state_of(producer).records == 9
        own.heal()
        async with client.producer(spill=spill, **SETTINGS) as producer:
            sent = [producer.send("t", value) for value in values(10, 20)]
            await emptied(producer)
            assert [(await delivery).partition for delivery in sent] == [0] * 10
        assert await read_values(client, "t") == {0: values(0, 20)}


@in_cluster("a:1")
async def test_a_process_that_finds_no_broker_spills_by_the_partitions_that_it_remembers(
    cluster: Cluster, spill: Spill
) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 4, {"max.message.bytes": 1000})
        async with client.producer(spill=spill, **SETTINGS) as producer:
            partition = (await producer.send("t", b"0", key=b"k")).partition
    await cut_off(own)
    async with own.client(timeout_s=5) as client:
        async with client.producer(spill=spill, **SETTINGS) as producer:
            result = await producer.send("t", b"1", key=b"k")
            assert isinstance(result, Spilled)
            assert result.partition == partition
            with pytest.raises(MessageTooLarge, match="takes up to 1000"):
                producer.send("t", bytes(2000))
            with pytest.raises(Unavailable, match="no broker"):  # its partitions were never known
                await producer.send("other", b"1", key=b"k")
        own.heal()
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await emptied(producer)
        assert (await read_values(client, "t"))[partition] == [b"0", b"1"]


@in_cluster("a:1")
async def test_a_batch_whose_answer_was_lost_is_stored_once(cluster: Cluster, spill: Spill) -> None:
    """The broker stores it, and the answer never comes."""
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            cluster.views["a:1"].pause()
            doubtful = [producer.send("t", value) for value in values(1, 5)]
            await asyncio.sleep(0.5)
            await cut_off(own)
            cluster.views["a:1"].resume()
            assert isinstance(await doubtful[-1], Spilled)
            later = await producer.send("t", b"5")
            assert isinstance(later, Spilled)
        own.heal()
        assert await read_values(client, "t") == {0: values(0, 5)}, "stored, without an answer"
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await emptied(producer)
            assert state_of(producer).maybe_twice == 0
        assert await read_values(client, "t") == {0: values(0, 6)}


@in_cluster("a:1", producer_states_max=1)
async def test_where_brokers_have_forgotten_the_session_a_lost_answer_may_store_twice_and_is_counted(
    cluster: Cluster, spill: Spill
) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            cluster.views["a:1"].pause()
            producer.send("t", b"1")
            await asyncio.sleep(0.5)
            await cut_off(own)
            cluster.views["a:1"].resume()
            producer.send("t", b"2")
        own.heal()
        async with client.producer() as other:
            await other.send("t", b"of another producer")
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await emptied(producer)
            assert state_of(producer).maybe_twice >= 1
        assert await read_values(client, "t") == {0: [b"0", b"1", b"of another producer", b"1", b"2"]}


@in_cluster("a:1", "b:1")
async def test_only_the_partitions_of_an_owner_that_is_down_are_spilled(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 6)
        down = {partition for partition in range(6) if await cluster.owner_of("t", partition) == "a:1"}
        assert 0 < len(down) < 6
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await cut_off(own, "a:1")
            for number in range(5):
                results = await asyncio.gather(*(producer.send("t", b"%d" % number, partition=at) for at in range(6)))
                assert {result.partition for result in results if isinstance(result, Spilled)} == down
            own.heal()
            await emptied(producer)
        assert await read_values(client, "t") == {partition: values(0, 5) for partition in range(6)}


@in_cluster("a:1")
async def test_arrow_batches_are_spilled_like_records(cluster: Cluster, spill: Spill) -> None:
    import pyarrow as pa

    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            batch = pa.RecordBatch.from_pydict({"value": pa.array(values(1, 4), pa.binary())})
            [result] = await (await producer.send_batch("t", batch))
            assert isinstance(result, SpilledBatch)
            assert tuple(result) == ("t", 0, None, 3)
            own.heal()
            await emptied(producer)
        assert await read_values(client, "t") == {0: values(0, 4)}


@pytest.mark.parametrize("when_full", ["wait", "fail"])
@in_cluster("a:1")
async def test_a_full_buffer_is_spilled_before_the_delivery_time_out(
    cluster: Cluster, spill: Spill, when_full: str
) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        settings = {"delivery_timeout_s": 1000, "buffer_bytes_max": 50_000, "batch_bytes_max": 5_000}
        async with client.producer(spill=spill, when_full=when_full, **settings) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            begun = asyncio.get_running_loop().time()
            deliveries = []
            for number in range(1, 500):
                deliveries.append(producer.send("t", b"%0500d" % number))
                await producer.wait_for_room()
                await asyncio.sleep(0.01)
            assert asyncio.get_running_loop().time() - begun < 60
            await producer.flush()
            assert state_of(producer).records > 400
            own.heal()
            await emptied(producer)
        assert await read_values(client, "t") == {0: [b"0", *(b"%0500d" % number for number in range(1, 500))]}


@in_cluster("a:1")
async def test_flush_and_close_leave_nothing_in_memory(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        producer = client.producer(spill=spill, delivery_timeout_s=60)
        await producer.send("t", b"0")
        await cut_off(own)
        deliveries = [producer.send("t", value) for value in values(1, 10)]
        with pytest.raises(DeadlineExceeded):
            await producer.flush(timeout_s=1)
        assert not any(delivery.done() for delivery in deliveries)
        await producer.close(timeout_s=1)
        assert {type(await delivery) for delivery in deliveries} == {Spilled}
        assert state_of(producer).records == 9
        own.heal()
        async with client.producer(spill=spill) as producer:
            await emptied(producer)
        assert await read_values(client, "t") == {0: values(0, 10)}


@in_cluster("a:1")
async def test_the_partition_of_a_spilled_record_is_fixed_though_the_topic_grows(
    cluster: Cluster, spill: Spill
) -> None:
    own = OwnNetwork(cluster)
    key = next(b"%d" % each for each in range(100) if partition_of_key(b"%d" % each, 8) >= 2)
    async with own.client() as client, OwnNetwork(cluster).client() as admin:
        await client.create_topic("t", 2)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0", key=key)
            await cut_off(own)
            spilled = await producer.send("t", b"1", key=key)
            assert isinstance(spilled, Spilled)
            await admin.alter_topic("t", 8)
        own.heal()
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await emptied(producer)
        found = await read_values(admin, "t")
        assert found[partition_of_key(key, 2)] == [b"0", b"1"]
        assert sum(map(len, found.values())) == 2
