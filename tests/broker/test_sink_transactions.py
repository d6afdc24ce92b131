"""The Spark sink with transactional=true: a micro-batch is there at once or not at all, and once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledgermq.client.producing.arrow.rows import conform
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.transactions.two_phase.branch import SharedTransaction, parts_of
from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    TransactionAborted,
    TransactionTooLarge,
    TransactionUnknown,
    Unavailable,
    UnknownTopic,
)
from ledgermq_ledger import keys
from ledgermq_spark.sink import transactional
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.driver import commit_epoch as commit_staged
from ledgermq_spark.sink.epochs import epochs
from ledgermq_spark.sink.epochs.decision import read_decision
from ledgermq_spark.sink.epochs.publishing import is_done
from ledgermq_spark.sink.staged import StagedInTransaction
from ledgermq_spark.sink.task import stage_rows
from ledgermq_spark.sink.transactional import begin_at, commit_epoch, stage_at
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import constants_of, served
from tests.waiting import until
from tests.worlds.sink_places import place_of, rows_of

ROWS = [f"t k{i % 3} v{i}" for i in range(40)]
OTHERS = [f"t k{i % 3} other{i}" for i in range(30)]


def values(*rows: Sequence[str]) -> list[bytes]:
    return sorted(row.split()[2].encode() for some in rows for row in some)


async def begin(place: Place) -> SharedTransaction:
    return await begin_at(place.client, place.sources, place.options)


async def stage(place: Place, transaction: SharedTransaction, rows: Sequence[str]) -> StagedInTransaction:
    return await stage_at(place.client, place.sources, place.options, transaction, "q", rows_of(rows))


async def run(place: Place, rows: Sequence[str]) -> list[StagedInTransaction]:
    """All that a driver and its tasks do before the commit."""
    transaction = await begin(place)
    return [await stage(place, transaction, rows[:25]), await stage(place, transaction, rows[25:])]


async def stored(cluster: Cluster) -> list[bytes]:
    return sorted([value for partition in range(2) for value in await cluster.read_all("t", partition)])


def staged_batches(cluster: Cluster) -> int:
    return sum(info.batches for found in served(cluster).values() for info in found.participant.staged_infos())


def ids(cluster: Cluster) -> list[str]:
    return sorted(
        info.transaction.transactional_id
        for found in served(cluster).values()
        for info in found.coordinator.operators.infos(open_only=False)
    )


@in_cluster("a:1", "b:1")
async def test_nothing_is_visible_before_the_commit_and_everything_when_it_returns(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        messages = await run(place, ROWS)
        assert staged_batches(cluster) > 2
        assert await stored(cluster) == []
        await commit_epoch(place, "q", 0, messages)
        assert await stored(cluster) == values(ROWS)
        assert staged_batches(cluster) == 0
        assert ids(cluster) == [], "an epoch that is done is not asked about"


@in_cluster("a:1", "b:1")
async def test_only_the_attempts_that_spark_accepted_are_visible(cluster: Cluster) -> None:
    """A speculative attempt stages the same rows, one that fails a part of them, one other rows."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place, place_of(cluster) as elsewhere:
        messages = await run(place, ROWS)
        transaction = messages[0].transaction
        await stage(elsewhere, transaction, ROWS[:25])
        await stage(elsewhere, transaction, ROWS[:9])
        await stage(elsewhere, transaction, OTHERS)
        await commit_epoch(place, "q", 0, messages)
        assert await stored(cluster) == values(ROWS)
        await until(lambda: staged_batches(cluster) == 0)


@in_cluster("a:1", "b:1")
async def test_an_epoch_that_comes_again_adds_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        await commit_epoch(place, "q", 0, await run(place, ROWS))
    async with place_of(cluster) as place:
        await commit_epoch(place, "q", 0, await run(place, OTHERS))
        assert await stored(cluster) == values(ROWS)
        await commit_epoch(place, "q", 1, await run(place, OTHERS))
        assert await stored(cluster) == values(ROWS, OTHERS)
        await until(lambda: staged_batches(cluster) == 0)


async def _dies(*_: object) -> None:
    raise Unavailable("the driver dies here")


@in_cluster("a:1", constants=constants_of(expiry_ms=60_000, expiry_look_ms=1_000))
async def test_a_commit_is_remembered_for_longer_than_ids_are_kept(cluster: Cluster) -> None:
    """The driver dies after the commit, and comes again when every other id has expired."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        messages = await run(place, ROWS)
        await begin(place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epochs, "mark_done", _dies)
            with pytest.raises(Unavailable, match="the driver dies here"):
                await commit_epoch(place, "q", 0, messages)
        mine = messages[0].transaction.transactional_id
        await until(lambda: ids(cluster) == [mine], 600)
        assert not await is_done(place.store, "q", 0)
        await commit_epoch(place, "q", 0, await run(place, OTHERS))
        assert await stored(cluster) == values(ROWS)
        assert await is_done(place.store, "q", 0)
        assert mine not in ids(cluster)


@in_cluster("a:1")
async def test_an_id_that_a_driver_left_is_forgotten_when_its_epoch_comes_again(cluster: Cluster) -> None:
    """The driver dies between the done mark and the last call."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        messages = await run(place, ROWS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epochs, "_forget", _dies)
            with pytest.raises(Unavailable, match="the driver dies here"):
                await commit_epoch(place, "q", 0, messages)
        mine = messages[0].transaction.transactional_id
        assert await is_done(place.store, "q", 0)
        assert mine in ids(cluster)
        await commit_epoch(place, "q", 0, await run(place, OTHERS))
        assert mine not in ids(cluster)
        assert await stored(cluster) == values(ROWS)


@pytest.mark.slow
@in_cluster("a:1", constants=constants_of(expiry_ms=60_000, expiry_look_ms=1_000))
async def test_what_was_decided_and_never_committed_is_written_by_the_next_run(cluster: Cluster) -> None:
    """At once, and when the aborted transaction is forgotten."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        for epoch, wait in ((0, False), (1, True)):
            messages = await run(place, [f"t k never{epoch}"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(transactional, "_end", _dies)
                with pytest.raises(Unavailable, match="the driver dies here"):
                    await commit_epoch(place, "q", epoch, messages)
            if wait:
                await until(lambda: ids(cluster) == [], 1200)
            await commit_epoch(place, "q", epoch, await run(place, [f"t k v{epoch}"]))
            with pytest.raises((TransactionAborted, TransactionUnknown)):
                await place.client.transactions.shared.commit(messages[0].transaction, [messages[0].counts])
        assert await stored(cluster) == [b"v0", b"v1"]
        second = await read_decision(place.store, "q", 0, 1)
        assert second is not None
        assert second.transactional_id


@in_cluster("a:1")
async def test_a_query_may_go_from_one_way_to_the_other(cluster: Cluster) -> None:
    """Also in the middle of an epoch that the other way has decided."""
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        messages = await run(place, [*OTHERS])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transactional, "_end", _dies)
            with pytest.raises(Unavailable):
                await commit_epoch(place, "q", 0, messages)
        staged = await stage_rows(place, "q", 0, rows_of(ROWS))
        assert staged.records == len(ROWS)
        await commit_staged(place, "q", 0, [staged], repeatable=True)
        assert await stored(cluster) == values(ROWS)
        await commit_epoch(place, "q", 0, await run(place, OTHERS))
        assert await stored(cluster) == values(ROWS)
        await commit_epoch(place, "q", 1, await run(place, OTHERS))
        await commit_staged(place, "q", 1, [await stage_rows(place, "q", 1, rows_of(ROWS))], repeatable=True)
        assert await stored(cluster) == values(ROWS, OTHERS)
        assert [info.key async for info in place.store.list(keys.sink_staged("q"))] == []


@in_cluster("a:1", constants=constants_of(timeout_ms_max=20_000, ask_after_ms=1_000))
async def test_a_micro_batch_that_takes_too_long_is_not_written_and_its_next_run_is(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as given:
        with pytest.raises(InvalidConfig, match=r"transactionTimeoutS is 900: .*is at most 20000 ms"):
            await begin(given)
        for impossible_s in (0.0001, 1e9):
            with pytest.raises(InvalidConfig, match=r"transactionTimeoutS is .*: a time-out is 1 to 4294967295 ms"):
                await begin(replace(given, options=replace(given.options, transaction_timeout_s=impossible_s)))
        place = replace(given, options=replace(given.options, transaction_timeout_s=5.0))
        messages = await run(place, ROWS)
        await until(lambda: staged_batches(cluster) == 0, 60)
        with pytest.raises(TransactionAborted, match="undecided beyond its time-out of 5000 ms"):
            await commit_epoch(place, "q", 0, messages)
        await stage(place, messages[0].transaction, OTHERS)
        await commit_epoch(place, "q", 0, await run(place, ROWS))
        await until(lambda: staged_batches(cluster) == 0, 60)
        assert await stored(cluster) == values(ROWS)


@in_cluster("a:1", constants=constants_of(batches_max=5))
async def test_what_is_too_large_for_a_transaction_is_refused_with_what_to_do(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with place_of(cluster) as place:
        transaction = await begin(place)
        with pytest.raises(
            TransactionTooLarge,
            match=r"has 5 batches in bundle \d+.* transactional=true .*maxOffsetsPerTrigger.*coalesce",
        ):
            await stage(place, transaction, ROWS)


@in_cluster("a:1")
async def test_epochs_without_rows_leave_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        for epoch in range(3):
            await commit_epoch(place, "q", epoch, await run(place, []))
        assert ids(cluster) == []
        assert [info.key async for info in place.store.list(keys.SINKS)] == []


@in_cluster("a:1")
async def test_a_run_of_which_a_task_fails_is_dropped_at_once(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        transaction = await begin(place)
        message = await stage(place, transaction, ROWS)
        await transactional.drop(place.client, [message])
        await until(lambda: staged_batches(cluster) == 0, 5)
        with pytest.raises(TransactionAborted):
            await commit_epoch(place, "q", 0, [message])
        assert await stored(cluster) == []


@in_cluster("a:1")
async def test_a_branch_of_which_a_record_failed_has_no_counts(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with place_of(cluster) as place:
        shared, transaction = place.client.transactions.shared, await begin(place)
        settings = ProducerSettings(linger_ms=60_000, auto_create=False)
        with pytest.raises(InvalidRequest, match="1 to 32 bytes, not 33"):
            shared.branch(transaction, b"x" * 33, settings)
        async for rows in rows_of(["t k v"]):
            batch = conform(rows.select(["key", "value"]), place.sources.now_us())
        async with shared.branch(transaction, b"good", settings) as branch:
            await branch.send_batch("t", batch)
            with pytest.raises(Unavailable, match="1 records are not staged yet: flush first"):
                branch.counts()
            await branch.flush()
            counts = branch.counts()
            [part] = parts_of([counts, replace(counts, branch=b"other")])
            assert [(count.branch, count.batches) for count in part.counts] == [(b"good", 1), (b"other", 1)]
        assert branch.closed
        async with shared.branch(transaction, b"bad", settings) as branch:
            await branch.send_batch("t", batch)
            delivery = await branch.send_batch("nowhere", batch)
            with pytest.raises(UnknownTopic):
                await delivery
            with pytest.raises(UnknownTopic):
                await branch.flush()
            with pytest.raises(UnknownTopic):
                branch.counts()
        await shared.commit(transaction, [counts])
        assert (await shared.completed(transaction.transactional_id)).committed
        assert await cluster.read_all("t", 0) == [b"v"]
        await shared.forget(transaction.transactional_id)
        await shared.forget(transaction.transactional_id)
