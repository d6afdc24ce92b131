"""Kill gateways and brokers while leases, event streams, keyed records and transactions go through them."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import closing
from pathlib import Path

import pytest

import ledgermq
from tests.chaos.children import Children
from tests.chaos.gateways import (
    PARTITIONS,
    QUEUE,
    TOPIC,
    TOPICS,
    GatewayPlace,
    Programs,
    Told,
    judge,
)
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.judges.violation import Violation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SECONDS, END_S_MAX, MESSAGES = 25.0, 120.0, 300


async def values_of(client: ledgermq.Client, topic: str) -> list[str]:
    async with client.consumer(topic, until_end=True) as consumer:
        return [(message.value or b"").decode() async for message in consumer]


async def up(places: list[GatewayPlace]) -> None:
    async with asyncio.timeout(90):
        while not all(place.is_up for place in places):
            await asyncio.sleep(0.1)


async def trouble(brokers: BrokerProcesses, places: list[GatewayPlace], seed: int) -> list[str]:
    """Kill and stop gateways and brokers, one at a time, and start each again."""
    r, happened = random.Random(seed), []
    end_s = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end_s or not any(
        each.startswith("gateway") and each.endswith("SIGKILL") for each in happened
    ):
        await asyncio.sleep(r.uniform(0.5, 2.0))
        if r.random() < 0.6:
            place = r.choice(places)
            number = r.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            happened.append(f"{place.name} {number.name}")
            await place.end(number)
            await asyncio.sleep(r.uniform(0.0, 1.0))
            place.start()
            await up([place])
        else:
            broker = r.choice(brokers.running)
            port = int(broker.address.rpartition(":")[2])
            happened.append(f"broker {port} SIGKILL")
            await asyncio.to_thread(brokers.kill, broker)
            await asyncio.to_thread(lambda port=port: brokers.start(port=port))  # type: ignore[misc]
    return happened


@pytest.mark.parametrize("seed", [1])
async def test_ids_are_stored_once_and_nothing_is_lost_while_gateways_and_brokers_are_killed(
    tmp_path: Path, seed: int
) -> None:
    children = Children(tmp_path)
    with closing(children), BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        await asyncio.to_thread(brokers.start_all, 2)
        async with ledgermq.connect(brokers.addresses) as client:
            await client.create_topic(TOPIC, PARTITIONS, {"dedup.window.ms": "10m"})
            for topic in (*TOPICS, QUEUE):
                await client.create_topic(topic, PARTITIONS)
            async with client.producer() as producer:
                for number in range(MESSAGES):
                    await producer.send(QUEUE, f"job {number}")
        places = [GatewayPlace(children, number, brokers.addresses) for number in range(2)]
        for place in places:
            place.start()
        await up(places)
        programs = Programs(places, seed)
        programs.told.queued.update(f"job {number}" for number in range(MESSAGES))
        works = [
            *(programs.produce(f"p{number}") for number in range(3)),
            *(programs.transact(f"t{number}") for number in range(2)),
            *(programs.lease(f"q{number}") for number in range(2)),
            *(programs.listen(f"s{number}") for number in range(3)),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        happened = await trouble(brokers, places, seed)
        programs.stopped.set()
        _, stuck = await asyncio.wait(tasks, timeout=END_S_MAX)
        for task in stuck:
            task.cancel()
        assert not stuck, (len(stuck), programs.told.statuses)
        for task in tasks:
            task.result()
        async with ledgermq.connect(brokers.addresses) as client:
            async with asyncio.timeout(60):
                while not all(each.complete for each in (await client.transactions.list(open_only=False)).transactions):
                    await asyncio.sleep(0.2)
            logs = {topic: await values_of(client, topic) for topic in (TOPIC, *TOPICS)}
        found = list(judge(programs.told, logs))
        assert not found, (found, happened)
        told = programs.told
        assert len(told.stored) > 20, "programs worked"
        assert len(told.committed) > 5
        assert told.reused > 0, "another body was refused"
        assert {each.partition(" ")[2] for each in happened} >= {"SIGKILL"}, happened


def test_the_judge_finds_what_is_wrong() -> None:
    def kinds(told: Told, **logs: list[str]) -> set[str]:
        all_logs = {TOPIC: ["a", "b"], "left": ["t"], "right": ["t"]} | logs
        return {violation.kind for violation in judge(told, all_logs)}

    def told(**more: object) -> Told:
        right = {"stored": {"a", "b"}, "committed": {"t"}, "queued": {"j"}, "acked": {"j": {"h"}}, "answered": {"j"}}
        return Told(**(right | {"heard": {"s": {"a", "b"}}} | more))  # type: ignore[arg-type]

    assert kinds(told()) == set()
    assert kinds(told(), keyed=["a", "b", "b"]) == {"stored twice"}
    assert kinds(told(), keyed=["a"]) == {"lost"}
    assert kinds(told(), left=["t", "u"]) == {"torn transaction"}
    assert kinds(told(), right=[]) == {"lost", "torn transaction"}
    assert kinds(told(heard={"s": {"a"}})) == {"not heard"}
    assert kinds(told(acked={"j": {"h", "i"}})) == {"acknowledged twice"}
    assert kinds(told(acked={})) == set(), "its answer was lost"
    assert kinds(told(answered=set())) == {"never acknowledged"}
    assert kinds(told(violations=[Violation("refused", "x")])) == {"refused"}
