"""A producer that keeps in a local file what it cannot deliver, in virtual time: nothing is lost, the order of
each partition holds, also across processes, and what was on its way is stored once.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from ledgermq import Spill, Spilled, SpilledBatch
from ledgermq.client.producing import spill_lanes
from ledgermq.client.producing.spill_file import SpillFile
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import (
    DataDamaged,
    DeadlineExceeded,
    InvalidConfig,
    MessageTooLarge,
    OutcomeUnknown,
    ResourceExhausted,
    StoreUnusable,
    Unavailable,
    UsedElsewhere,
)
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.own_network import OwnNetwork
from tests.e2e.test_spill_storm import kill
from tests.waiting import until
from tests.worlds.consumed import read_values

SETTINGS: dict[str, Any] = {"delivery_timeout_s": 5, "request_timeout_s": 2}


@pytest.fixture
def spill(tmp_path: Path) -> Spill:
    return Spill(tmp_path / "t.spill")


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def state_of(producer: ledgermq.Producer) -> ledgermq.SpillState:
    assert producer.spilled is not None
    return producer.spilled


async def emptied(producer: ledgermq.Producer) -> None:
    await until(lambda: state_of(producer).records == 0, 200)


async def cut_off(own: OwnNetwork, *addresses: str) -> None:
    """And let the client notice."""
    own.cut(*addresses)
    await asyncio.sleep(0.1)


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
async def test_when_the_spill_is_full_send_fails_and_what_was_answered_stays(cluster: Cluster, tmp_path: Path) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=Spill(tmp_path / "t.spill", records_max=10), **SETTINGS) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            spilled: list[bytes] = []

            async def fill() -> None:
                for value in values(1, 100):
                    await producer.send("t", value)
                    spilled.append(value)

            with pytest.raises(ResourceExhausted, match="no room for more"):
                await fill()
            assert len(spilled) == 10
            with pytest.raises(ResourceExhausted, match="no room for more"):
                producer.send("t", b"refused at once")
            await asyncio.sleep(2)
            delivery = producer.send("t", b"refused when it is written")
            with pytest.raises(ResourceExhausted, match="no room for more"):
                await delivery
            own.heal()
            await emptied(producer)
            await asyncio.sleep(2)
            assert (await producer.send("t", b"last")).offset == 11
        assert await read_values(client, "t") == {0: [b"0", *spilled, b"last"]}


@in_cluster("a:1")
async def test_the_sequence_of_a_batch_that_found_no_room_is_not_used_again(cluster: Cluster, tmp_path: Path) -> None:
    """The broker has two batches without an answer, and there is room for the first one. A later record under the
    number of the second would count as its repetition.
    """
    own = OwnNetwork(cluster)
    large = bytes(5000)
    async with own.client() as client:
        await client.create_topic("t", 1)
        spill = Spill(tmp_path / "t.spill", bytes_max=4000)
        settings = {"batch_bytes_max": 1, "compression": "none", **SETTINGS}
        async with client.producer(spill=spill, **settings) as producer:
            await producer.send("t", b"0")
            cluster.views["a:1"].pause()
            doubtful = [producer.send("t", b"1"), producer.send("t", large)]
            await asyncio.sleep(0.5)
            await cut_off(own)
            cluster.views["a:1"].resume()
            for delivery in doubtful:
                with pytest.raises(OutcomeUnknown):
                    await delivery
            await asyncio.sleep(2)
            assert isinstance(await producer.send("t", b"3"), Spilled)
            own.heal()
            await emptied(producer)
        assert await read_values(client, "t") == {0: [b"0", b"1", large, b"3"]}


@in_cluster("a:1")
async def test_a_process_that_could_not_remove_what_it_sent_is_followed_by_one_that_sends_nothing_twice(
    cluster: Cluster, spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers remember the last five batches; the file has more that are stored."""

    async def fails(*given: object) -> None:
        raise StoreUnusable("the disk cannot be written")

    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        settings = {"batch_bytes_max": 1, **SETTINGS}
        async with client.producer(spill=spill, **settings) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            for value in values(1, 20):
                producer.send("t", value)
        own.heal()
        monkeypatch.setattr(SpillFile, "remove", fails)
        producer = client.producer(spill=spill, **settings)
        await producer.open_spill()
        await until(lambda: state_of(producer).resent == 19)
        assert isinstance(state_of(producer).last_error, StoreUnusable)
        assert state_of(producer).records == 19
        await kill(producer)
        monkeypatch.undo()
        async with client.producer(spill=spill, **settings) as producer:
            await emptied(producer)
            assert state_of(producer).maybe_twice == 0
        assert await read_values(client, "t") == {0: values(0, 20)}


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


@in_cluster("a:1")
async def test_a_topic_that_was_deleted_keeps_its_records_in_the_file(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        await client.create_topic("u", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            await producer.send("u", b"0")
            await cut_off(own)
            producer.send("t", b"1")
            producer.send("u", b"1")
        own.heal()
        await client.delete_topic("t")
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await until(lambda: state_of(producer).resent == 1, 100)
            await asyncio.sleep(30)
            state = state_of(producer)
            assert (state.records, state.partitions) == (1, 1)
            assert state.last_error is not None
        assert await read_values(client, "u") == {0: [b"0", b"1"]}


@in_cluster("a:1")
async def test_many_partitions_share_the_memory_for_what_is_sent_from_the_file(
    cluster: Cluster, spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_lanes, "LOADED_BYTES_ALL", 64 * 1024)
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 8)
        async with client.producer(spill=spill, batch_bytes_max=4096, **SETTINGS) as producer:
            await producer.send("t", b"0", partition=0)
            await cut_off(own)
            for partition in range(8):
                for _ in range(8):
                    producer.send("t", random.Random(partition).randbytes(4000), partition=partition)
        own.heal()
        await client.delete_topic("t")
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await until(lambda: state_of(producer).last_error is not None, 100)
            await asyncio.sleep(30)
            assert producer._spilling is not None
            lanes = list(producer._spilling._lanes)
            assert len(lanes) == 8
            assert [lane.loaded for lane in lanes if lane.queue.waits] == [0], "it was sent to, and is asked about"
            assert {lane.loaded for lane in lanes if not lane.queue.waits} <= {1, 2}


@in_cluster("a:1")
async def test_a_file_of_another_cluster_is_refused_before_anything_of_it_is_sent(
    cluster: Cluster, spill: Spill
) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=spill, **SETTINGS) as producer:
            await producer.send("t", b"0")
            await cut_off(own)
            producer.send("t", b"1")
        with closing(sqlite3.connect(spill.path)) as connection, connection:
            connection.execute("UPDATE cluster SET id = 'another'")
        own.heal()
        producer = client.producer(spill=spill, **SETTINGS)
        await producer.open_spill()
        await asyncio.sleep(5)
        with pytest.raises(InvalidConfig, match="has records for cluster another"):
            producer.send("t", b"2")
        await producer.close()
        assert await read_values(client, "t") == {0: [b"0"]}


@in_cluster("a:1")
async def test_two_producers_do_not_share_a_file(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        async with client.producer(spill=spill):
            with pytest.raises(UsedElsewhere, match="by another producer of this one"):
                async with client.producer(spill=spill):
                    pass
            second = client.producer(spill=spill)
            with pytest.raises(UsedElsewhere):
                await second.send("t", b"0")
            await second.abort()
        async with client.producer(spill=spill):
            pass


@in_cluster("a:1")
async def test_a_damaged_file_is_refused(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        async with client.producer(spill=spill):
            pass
        with open(spill.path, "wb") as file:  # noqa: ASYNC230  in virtual time
            file.write(b"no database" * 1000)
        with pytest.raises(DataDamaged, match=r"t\.spill"):
            async with client.producer(spill=spill):
                pass


@in_cluster("a:1")
async def test_what_cannot_be_combined_is_refused(cluster: Cluster, spill: Spill) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        for settings in ({"acks": "received"}, {"idempotent": False}):
            with pytest.raises(InvalidConfig, match="leave out acks and idempotent"):
                client.producer(spill=spill, **settings)
        with pytest.raises(InvalidConfig, match="a transaction cannot spill"):
            client.transactions("i", spill=spill)
        with pytest.raises(InvalidConfig, match="a half message cannot spill"):
            client.half_messages("g", check=lambda message: "commit", spill=spill)
        with pytest.raises(InvalidConfig, match="a resumed producer cannot spill"):
            client.resumed_producer({}, spill=spill)
        with pytest.raises(InvalidConfig, match="has no spill"):
            await client.producer().open_spill()
