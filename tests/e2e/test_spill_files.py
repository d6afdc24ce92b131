"""The file of a producer that spills: full, damaged, of another cluster, shared, left by a process that died."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledgermq import Spill, Spilled
from ledgermq.client.producing.spilling import spill_lanes
from ledgermq.client.producing.spilling.spill_file import SpillFile
from ledgermq.errors import DataDamaged, InvalidConfig, OutcomeUnknown, ResourceExhausted, StoreUnusable, UsedElsewhere
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.own_network import OwnNetwork
from tests.e2e.spilling import SETTINGS, cut_off, emptied, spill_below, state_of, values
from tests.e2e.test_spill_storm import kill
from tests.waiting import until
from tests.worlds.consumed import read_values

spill = pytest.fixture(spill_below)


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
