"""Groups on real processes: members that join, leave and are killed while messages flow, and many
groups at once.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ledgermq
from tests.e2e.processes import BrokerProcesses
from tests.waiting import until

PARTITIONS = 12
pytestmark = pytest.mark.slow


@dataclass(frozen=True, order=True)
class Event:
    time_ns: int
    member: int
    what: str = field(compare=False)
    partition: int = field(compare=False)
    offset: int = field(compare=False)


class Members:
    """Processes of `tests.e2e.group_member`."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        self._target = target
        self.living: dict[int, subprocess.Popen[bytes]] = {}
        self.killed: dict[int, int] = {}
        """When, by the monotonic clock in ns."""
        self._started = 0

    def start(self) -> int:
        number = self._started
        self._started += 1
        command = [sys.executable, "-m", "tests.e2e.group_member", self._target, "t", "g", str(self._log(number))]
        with (self._folder / f"member-{number}.err").open("wb") as errors:
            self.living[number] = subprocess.Popen(command, stderr=errors)
        return number

    def _log(self, number: int) -> Path:
        return self._folder / f"member-{number}.log"

    def kill(self, number: int) -> None:
        process = self.living.pop(number)
        process.kill()
        process.wait()
        self.killed[number] = time.monotonic_ns()

    def leave(self, number: int) -> None:
        self.living[number].send_signal(signal.SIGTERM)

    def wait_left(self) -> None:
        for number, process in list(self.living.items()):
            assert process.wait(60) == 0, (self._folder / f"member-{number}.err").read_text()[-3000:]
        self.living.clear()

    def events(self) -> list[Event]:
        found = []
        for number in range(self._started):
            if self._log(number).exists():
                for line in self._log(number).read_text().splitlines():
                    time_ns, what, partition, offset = line.split()
                    found.append(Event(int(time_ns), number, what, int(partition), int(offset)))
        return sorted(found)

    def close(self) -> None:
        for process in self.living.values():
            process.kill()
        for process in self.living.values():
            process.wait()


@asynccontextmanager
async def producing(client: ledgermq.Client, per_s: int) -> AsyncIterator[Counter[int]]:
    """Until the end of the block; counts what is stored, by partition."""
    stored: Counter[int] = Counter()
    stop = asyncio.Event()

    async def produce() -> None:
        number = 0
        async with client.producer() as producer:
            while not stop.is_set():
                results = await asyncio.gather(
                    *(producer.send("t", b"x", partition=(number + n) % PARTITIONS) for n in range(per_s // 10))
                )
                stored.update(result.partition for result in results)
                number += per_s // 10
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        yield stored
        stop.set()


async def wait_for(condition: Callable[[list[Event]], bool], members: Members) -> None:
    await until(lambda: condition(members.events()), 150, every_s=0.3, what=inspect.getsource(condition).strip())


def holders(events: list[Event]) -> dict[int, int]:
    """Who holds each partition at the end of these events."""
    found: dict[int, int] = {}
    for event in events:
        if event.what == "assigned":
            found[event.partition] = event.member
        elif event.what in ("revoked", "lost") and found.get(event.partition) == event.member:
            del found[event.partition]
    return found


@pytest.mark.timeout(600)
async def test_a_storm_of_members(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, f"file://{tmp_path}/root") as brokers:
        brokers.start_all(2)
        members = Members(tmp_path, brokers.addresses)
        try:
            async with ledgermq.connect(brokers.addresses) as client:
                await client.create_topic("t", PARTITIONS)
                async with producing(client, 300) as stored:
                    await storm(members)
                await wait_for(lambda events: handled(events).keys() >= expected(stored), members)
            for number in members.living:
                members.leave(number)
            await asyncio.to_thread(members.wait_left)
        finally:
            members.close()
        judge(members, stored)


async def storm(members: Members) -> None:
    """Ten members: three are killed, three leave, four stay."""
    first = [members.start() for _ in range(4)]
    await wait_for(lambda events: len(set(holders(events).values())) == 4, members)
    members.kill(first[0])
    second = [members.start() for _ in range(3)]
    members.leave(first[1])
    await wait_for(
        lambda events: len({e.member for e in events if e.what == "assigned" and e.member in second}) == 3, members
    )
    members.kill(second[0])
    members.leave(first[2])
    third = [members.start() for _ in range(3)]
    await wait_for(
        lambda events: len({e.member for e in events if e.what == "assigned" and e.member in third}) == 3, members
    )
    members.kill(third[0])
    members.leave(second[1])
    stay = {first[3], second[2], *third[1:]}
    await wait_for(lambda events: set(holders(events).values()) == stay and len(holders(events)) == PARTITIONS, members)


def handled(events: list[Event]) -> Counter[tuple[int, int]]:
    return Counter((event.partition, event.offset) for event in events if event.what == "handled")


def expected(stored: Counter[int]) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, count in stored.items() for offset in range(count)}


def judge(members: Members, stored: Counter[int]) -> None:
    """One owner at a time, all handled, and again only what a killed member had not committed."""
    events = members.events()
    counts = handled(events)
    assert counts.keys() == expected(stored), "every message at least once, and no other"
    holder: dict[int, int] = {}
    position: dict[int, int] = {}
    committed: dict[int, int] = {}
    again = 0
    for event in events:
        before = holder.get(event.partition)
        reached = position.get(event.partition, 0)
        if event.what == "assigned":
            dead = before in members.killed and members.killed[before] < event.time_ns
            assert before is None or dead, f"partition {event.partition} has two owners: {before} and {event.member}"
            assert committed.get(event.partition, 0) <= event.offset <= reached, (
                "a committed offset never goes back, and none is left out"
            )
            assert before is not None or event.offset == reached, "who lets go tells where the next begins"
            again += reached - event.offset
            position[event.partition] = event.offset
            holder[event.partition] = event.member
        elif event.what in ("revoked", "lost"):
            assert before == event.member
            del holder[event.partition]
        elif event.what == "handled":
            assert before == event.member, f"{event} by who does not hold it"
            assert event.offset == reached, f"{event} after {reached}"
            position[event.partition] = event.offset + 1
        elif event.what == "committed":
            committed[event.partition] = event.offset
    repeated = counts.total() - len(counts)
    assert repeated == again, "only what was handled after the last commit of a member that was killed comes again"
    print(
        f"{len(counts)} messages, {repeated} handled again after {len(members.killed)} kills;"
        f" {Counter(e.what for e in events)}"
    )


@pytest.mark.timeout(600)
async def test_ten_producers_ten_consumers_ten_groups(tmp_path: Path) -> None:
    per_producer = 200
    with BrokerProcesses(tmp_path, f"file://{tmp_path}/root") as brokers:
        brokers.start_all(2)
        async with ledgermq.connect(brokers.addresses) as client:
            await client.create_topic("t", 10)
            seen = {f"g{number}": Counter[bytes | None]() for number in range(10)}
            wanted = {b"%d/%d" % (producer, number) for producer in range(10) for number in range(per_producer)}

            async def produce(number: int) -> None:
                async with client.producer() as producer:
                    for each in range(per_producer):
                        producer.send("t", b"%d/%d" % (number, each))
                        await asyncio.sleep(0.01)

            async def consume(group: str) -> None:
                async with client.consumer("t", group=group) as consumer:
                    while len(seen[group]) < len(wanted):
                        seen[group].update(message.value for message in await consumer.fetch(50, timeout=1))
                    await consumer.drain()

            async with asyncio.TaskGroup() as tasks:
                for group in seen:
                    for _ in range(10):
                        tasks.create_task(consume(group))
                for number in range(10):
                    tasks.create_task(produce(number))
        assert all(values.keys() == wanted and set(values.values()) == {1} for values in seen.values())
