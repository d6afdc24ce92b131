"""The Spark sink under rare conditions: brokers forgot its producer, a topic was deleted, a limit
was lowered, brokers do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pytest

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.producing.partition.sessions import EncodedBatch
from ledgermq.errors import DataDamaged, MessageTooLarge, OutcomeUnknown, TopicBeingDeleted, Unavailable, UnknownTopic
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import Buffer, StoreUncertain
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.driver import commit_epoch, wanted_decision
from ledgermq_spark.sink.epochs.decision import decide, read_decision
from ledgermq_spark.sink.epochs.publishing import is_done
from ledgermq_spark.sink.task import stage_rows
from tests.broker.cluster import Cluster, in_cluster
from tests.stores.ahead import AheadStore
from tests.worlds.sink_places import BetweenReads, place_of, rows_of

T = TypeVar("T")
ROWS = [f"t k{i % 3} v{i}" for i in range(40)]
VALUES = sorted(row.split()[2].encode() for row in ROWS)


async def stage_and_decide(place: Place, rows: list[str] = ROWS, epoch: int = 0) -> None:
    """All that a driver does before it publishes anything."""
    staged = await stage_rows(place, "q", epoch, rows_of(rows))
    await decide(place.store, place.sources, "q", epoch, await wanted_decision(place, [staged]))


async def stored(cluster: Cluster, topic: str = "t", partitions: int = 2) -> list[bytes]:
    return sorted([value for partition in range(partitions) for value in await cluster.read_all(topic, partition)])


async def make_brokers_forget(cluster: Cluster, place: Place) -> None:
    """More producers than they remember, in each partition."""
    for _ in range(6):
        async with place.client.producer() as producer:
            for partition in range(2):
                await producer.send("t", b"other", partition=partition)


@in_cluster("a:1", producer_states_max=4)
async def test_what_brokers_forgot_is_left_to_a_person_who_may_give_up_the_rest(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        await stage_and_decide(place)
        await make_brokers_forget(cluster, place)
        for _ in range(2):
            with pytest.raises(
                OutcomeUnknown, match=r"epoch 0 of q was decided, and brokers no longer know how much of it is stored"
            ):
                await commit_epoch(place, "q", 0, [], repeatable=True)
        assert set(await stored(cluster)) == {b"other"}, "it never guesses"
        await place.store.put_if_absent(keys.sink_done_epoch("q", 0), [b"given up by hand"])
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert set(await stored(cluster)) == {b"other"}
        assert [info.key async for info in place.store.list(keys.sink_staged("q"))] == []


@in_cluster("a:1", producer_states_max=4)
async def test_or_have_all_of_it_written_again(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        await stage_and_decide(place)
        await make_brokers_forget(cluster, place)
        with pytest.raises(OutcomeUnknown):
            await commit_epoch(place, "q", 0, [], repeatable=True)
        await place.store.delete([keys.sink_decision("q", 0)])
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        assert staged.records == len(ROWS)
        await commit_epoch(place, "q", 0, [staged], repeatable=True)
        assert [value for value in await stored(cluster) if value != b"other"] == VALUES


@in_cluster("a:1")
async def test_rows_for_a_topic_that_was_made_anew_went_with_the_former_one(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.create("u", 1)
    async with place_of(cluster) as place:
        await stage_and_decide(place, [*ROWS, "u k still-there"])
        await make_anew(place)
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert await is_done(place.store, "q", 0)
        assert await stored(cluster) == []
        assert await stored(cluster, "u", 1) == [b"still-there"]


async def make_anew(place: Place) -> None:
    """Topic t, once every broker has let go of the former one."""
    await place.client.delete_topic("t")
    async with asyncio.timeout(600):
        while True:
            await asyncio.sleep(5)
            with suppress(TopicBeingDeleted):
                await place.client.create_topic("t", 2)
                return


@in_cluster("a:1")
async def test_rows_for_a_topic_that_was_deleted_went_with_it(cluster: Cluster) -> None:
    """The epoch comes to its end, for it has rows for others."""
    await cluster.create("t", 2)
    await cluster.create("u", 1)
    async with place_of(cluster) as place:
        await stage_and_decide(place, [*ROWS, "u k still-there"])
        await place.client.delete_topic("t")
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert await is_done(place.store, "q", 0)
        assert await stored(cluster, "u", 1) == [b"still-there"]


@in_cluster("a:1", "b:1")
async def test_a_topic_that_one_broker_does_not_know_was_not_deleted(cluster: Cluster) -> None:
    """Brokers answer from a copy that may be behind; what all have acknowledged decides."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        await stage_and_decide(place)

        async def describe_topic(name: str) -> TopicDescription:
            raise UnknownTopic(f"topic {name!r} does not exist")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place.client, "describe_topic", describe_topic)
            with pytest.raises(Unavailable, match="topic t exists, but a broker has not read it yet"):
                await commit_epoch(place, "q", 0, [], repeatable=True)
        assert not await is_done(place.store, "q", 0)
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert await stored(cluster) == VALUES


@in_cluster("a:1")
async def test_a_topic_that_is_made_anew_between_two_tasks_is_not_decided_about(cluster: Cluster) -> None:
    """One's rows are for the former topic, the other's for the new one: none of them may be taken
    for rows of the other.
    """
    await cluster.create("t", 2)
    async with place_of(cluster) as place, place_of(cluster) as later:
        messages = [await stage_rows(place, "q", 0, rows_of(ROWS[:20]))]
        await make_anew(place)
        messages.append(await stage_rows(later, "q", 0, rows_of(ROWS[20:])))
        for given in (messages, messages[::-1]):
            with pytest.raises(
                Unavailable,
                match="topic t was deleted and made again while rows for it were staged; nothing was written",
            ):
                await commit_epoch(place, "q", 0, given, repeatable=True)
        assert await read_decision(place.store, "q", 0) is None
        again = await stage_rows(later, "q", 0, rows_of(ROWS))
        await commit_epoch(place, "q", 0, [again], repeatable=True)
        assert await stored(cluster) == VALUES


@in_cluster("a:1")
async def test_a_topic_that_is_made_anew_in_the_midst_of_a_task_fails_it(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            yield pa.record_batch({"topic": ["t"], "value": ["x" * 300]})
            await make_anew(place)
            await place.client.alter_topic("t", partitions=3)
            yield pa.record_batch({"topic": ["t"], "value": ["y" * 300], "partition": pa.array([2], pa.int32())})

        with pytest.raises(
            Unavailable, match="topic t was deleted and made again while rows for it were staged; nothing was written"
        ):
            await stage_rows(place, "q", 0, batches())
        assert [info.key async for info in place.store.list(keys.sink_staged("q"))] == []


@in_cluster("a:1")
async def test_a_limit_that_was_lowered_meanwhile_holds_the_epoch_until_it_is_raised(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    rows = [*ROWS, "t k " + "x" * 500]
    async with place_of(cluster) as place:
        await stage_and_decide(place, rows)
        await place.client.alter_topic("t", settings={"max.message.bytes": 100})
        for _ in range(2):
            with pytest.raises(MessageTooLarge):
                await commit_epoch(place, "q", 0, [], repeatable=True)
        await place.client.alter_topic("t", settings={"max.message.bytes": 1000})
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert await stored(cluster) == sorted(row.split()[2].encode() for row in rows)


@in_cluster("a:1")
async def test_staged_rows_that_are_gone_are_damage_not_an_empty_epoch(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        await stage_and_decide(place)
        await place.store.delete([info.key async for info in place.store.list(keys.sink_staged("q"))])
        with pytest.raises(DataDamaged, match="staged rows that were not published yet are missing"):
            await commit_epoch(place, "q", 0, [], repeatable=True)
        assert not await is_done(place.store, "q", 0)


class NoMarks(StoreWrapper):
    """A view of the store in which no epoch can be marked as done."""

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key == keys.sink_done_epoch("q", 0):
            raise StoreUncertain("no answer")
        await self.inner.put_if_absent(key, buffers)


@in_cluster("a:1")
async def test_staged_rows_stay_until_it_is_certain_that_the_epoch_is_marked_as_done(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        for messages in ([staged], []):
            with pytest.raises(
                Unavailable, match="epoch 0 of q is published; the outcome of the put of its done mark is unknown"
            ):
                await commit_epoch(replace(place, store=NoMarks(place.store)), "q", 0, messages, repeatable=True)
            assert [info.key async for info in place.store.list(keys.sink_staged("q"))] == staged.objects
        await commit_epoch(place, "q", 0, [], repeatable=True)
        assert await is_done(place.store, "q", 0)
        assert [info.key async for info in place.store.list(keys.sink_staged("q"))] == []
        assert await stored(cluster) == VALUES


@in_cluster("a:1")
async def test_a_driver_whose_rival_was_faster_finds_its_work_done(cluster: Cluster) -> None:
    """The rival has published everything, and has deleted what was staged, while this one still
    reads it.
    """
    await cluster.create("t", 2)
    async with place_of(cluster) as place, place_of(cluster) as rival:
        messages = [await stage_rows(place, "q", 0, rows_of(part)) for part in (ROWS[:20], ROWS[20:])]

        async def at_once() -> None:
            """Nothing happens before the first."""

        async def overtake() -> None:
            await commit_epoch(rival, "q", 0, messages, repeatable=True)

        await commit_epoch(
            replace(place, store=BetweenReads(place.store, at_once, overtake)), "q", 0, messages, repeatable=True
        )
        assert await is_done(place.store, "q", 0)
        assert await stored(cluster) == VALUES


@in_cluster("a:1")
async def test_a_given_session_ends_with_its_error_and_takes_no_other(cluster: Cluster) -> None:
    """What `send_encoded` promises: where the sequences do not fit, nothing is sent under other
    ones.
    """
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        decision = await wanted_decision(place, [staged])
        sessions = await place.client.open_sessions(decision.put_id, list(decision.opened_slots))
        [first, *_] = sessions
        sessions[first].next_sequence = 5
        async with place.client.resumed_producer(sessions, delivery_timeout_s=10) as producer:
            batch = EncodedBatch(b"no batch", 0, 1, 0, 0)
            topic_id = decision.topics["t"]
            with pytest.raises(UnknownTopic):
                await producer.send_encoded(first.topic, topic_id + 1, first.partition, batch, 5)
            outcomes = [
                await producer.send_encoded(first.topic, topic_id, first.partition, batch, sequence)
                for sequence in (5, 6, 7)
            ]
            for outcome in outcomes:
                await outcome.wait()
                assert outcome.error is not None
                outcome.reported = True
        assert await stored(cluster) == []


@in_cluster("a:1")
async def test_brokers_that_are_away_for_a_while_are_waited_for(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        await cluster.stop("a:1", graceful=False)
        commit = asyncio.create_task(commit_epoch(place, "q", 0, [staged], repeatable=True))
        await asyncio.sleep(10)
        await cluster.start("a:1")
        await commit
        assert await stored(cluster) == VALUES


@in_cluster("a:1")
async def test_rows_that_were_staged_long_ago_are_not_decided_about(cluster: Cluster) -> None:
    """Garbage collection may be about to take them, by the store's clock; that of the driver is
    behind and shows that they are fresh.
    """
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        with pytest.raises(
            Unavailable,
            match="rows were staged 96 hours ago, which is too long; nothing was written: run the write again",
        ):
            await commit_epoch(
                replace(place, store=AheadStore(place.store, 4 * 24 * 3600 * 1000)), "q", 0, [staged], repeatable=True
            )
        assert await stored(cluster) == []


@in_cluster("a:1")
async def test_rows_that_are_gone_are_not_decided_about(cluster: Cluster) -> None:
    """Else no retry could ever publish the epoch, and Spark could not begin it again."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        await place.store.delete(staged.objects[:1])
        with pytest.raises(
            Unavailable, match="1 objects with staged rows are gone; nothing was written: run the write again"
        ):
            await commit_epoch(place, "q", 0, [staged], repeatable=True)
        assert await read_decision(place.store, "q", 0) is None
        again = await stage_rows(place, "q", 0, rows_of(ROWS))
        await commit_epoch(place, "q", 0, [again], repeatable=True)
        assert await stored(cluster) == VALUES
