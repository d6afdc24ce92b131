"""Cuts that the controller takes by itself: their times, their end, takeovers, failures that an operator sees."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

import ledgermq
from ledgermq_broker.cluster import heartbeat
from ledgermq_broker.cuts.taking import Taking
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.automatic import automatic_in, parse_schedule
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.test_cuts import no_cuts, nothing_left, read_cut
from tests.waiting import until

EVERY = {"cut_every_ms": 10_000, "cut_keep": "30s, then every 1m 3m"}


async def taken(client: ledgermq.Client) -> list[str]:
    return [cut.name for cut in await client.cuts.list() if cut.state == "taken"]


def controller(cluster: Cluster) -> str:
    [found] = [a for a, broker in cluster.brokers.items() if keys.METADATA_BUNDLE in broker.ownership.opened]
    return found


def begun_ms(cluster: Cluster) -> list[int]:
    catalog = cluster.brokers[controller(cluster)].metadata.catalog
    return [record.begun_ms for record in automatic_in(catalog)]


def apart(times: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(times)]


def alarms(cluster: Cluster) -> list[str]:
    return [alarm for alarm in cluster.brokers[controller(cluster)].alarms.now() if "automatic cut" in alarm]


@pytest.mark.slow
@in_cluster("a:1", "b:1", **EVERY)
async def test_cuts_are_taken_and_go_by_themselves(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await cluster.produce("t", 0, b"1")
        await asyncio.sleep(300)
        names = await taken(client)
        assert 5 <= len(names) <= 8, "those of 30 s, and one of each minute"
        assert all(name.startswith("auto-") for name in names)
        times = begun_ms(cluster)
        assert {at // 60_000 for at in times} >= {times[-1] // 60_000 - back for back in range(3)}
        assert all(9_000 < pause < 14_000 for pause in apart(times[-3:]))
        assert await read_cut(cluster, names[0]) == [[b"1"]]
        ages = [broker.cuts.age_s() for broker in cluster.brokers.values()]
        assert sorted(age is None for age in ages) == [False, True], "the controller says it, and no other broker"
        assert all(age is None or age < 15 for age in ages)
        for broker in cluster.brokers.values():
            broker.apply(broker.settings.model_copy(update={"cut_every_ms": 0}))
        assert cluster.brokers[controller(cluster)].cuts.kept() is None
        await until(lambda: no_cuts(client), 600)
        assert await nothing_left(cluster)


@in_cluster("a:1", "b:1")
async def test_none_is_taken_unless_it_is_set(cluster: Cluster) -> None:
    await asyncio.sleep(1000)
    async with cluster.client() as client:
        assert await client.cuts.list() == []
    assert not alarms(cluster)


@in_cluster("a:1", "b:1", "c:1", **EVERY)
async def test_takeovers_neither_repeat_nor_stop_them(cluster: Cluster) -> None:
    async with cluster.client(timeout_s=60) as client:
        for graceful in (True, False):
            await asyncio.sleep(34)
            await cluster.stop(controller(cluster), graceful=graceful)
        await asyncio.sleep(25)
        await until(lambda: bool(cluster.brokers) and controller_is_there(cluster), 60)
        times = begun_ms(cluster)
        assert len(times) >= 4
        assert all(pause >= 10_000 for pause in apart(times)), "not one cut more"
        assert all(pause < 75_000 for pause in apart(times))
        assert all(cut.state == "taken" for cut in await client.cuts.list())


async def controller_is_there(cluster: Cluster) -> bool:
    return any(keys.METADATA_BUNDLE in broker.ownership.opened for broker in cluster.brokers.values())


@in_cluster("a:1", "b:1", **EVERY)
async def test_a_controller_that_was_replaced_takes_none(cluster: Cluster) -> None:
    """An old process: paused before its cut begins, it wakes after the next controller has taken one."""
    async with cluster.client(timeout_s=60) as client:
        await until(lambda: some(client), 60)
        old = controller(cluster)
        cluster.views[old].pause()
        await asyncio.sleep(60)
        cluster.views[old].resume()
        await asyncio.sleep(30)
        assert controller(cluster) != old
        assert all(pause >= 10_000 for pause in apart(begun_ms(cluster)))
        assert all(cut.state == "taken" for cut in await client.cuts.list())


async def some(client: ledgermq.Client) -> bool:
    return bool(await taken(client))


@in_cluster("a:1", **EVERY)
async def test_cuts_that_fail_are_reported_and_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = cluster.brokers["a:1"]
    old = heartbeat.Heartbeat("old", "old:1", 1, "s", release="0.1.0")
    async with cluster.client() as client:
        await until(lambda: some(client), 60)
        assert (broker.cuts.failed, alarms(cluster)) == (0, [])
        monkeypatch.setattr(broker.controller, "_lacking", lambda feature: [old] if feature == heartbeat.PINS else [])
        await asyncio.sleep(60)
        assert broker.cuts.failed > 2
        [alarm] = alarms(cluster)
        assert "they are to be taken every 10 s: cuts of the cluster need every broker, but broker old" in alarm
        problems = (await client.describe_cluster()).problems
        assert any("no automatic cut for" in each for each in problems)
        monkeypatch.undo()
        await asyncio.sleep(20)
        assert alarms(cluster) == []
        assert (broker.cuts.age_s() or 0) < 20


@in_cluster("a:1", "b:1", **EVERY)
async def test_two_looks_at_once_take_one_cut(cluster: Cluster) -> None:
    """I13: whether one is due is decided in the turn that begins it."""
    async with cluster.client() as client:
        await until(lambda: some(client), 60)
        broker = cluster.brokers[controller(cluster)]
        taking: Taking = broker.cuts._taking
        before = len(begun_ms(cluster))
        await asyncio.sleep(3)
        soon = parse_schedule(1000, "1m")
        found = await asyncio.gather(*(taking.take_if_due(soon) for _ in range(3)))
        assert sum(each is not None for each in found) == 1
        assert len(begun_ms(cluster)) == before + 1
