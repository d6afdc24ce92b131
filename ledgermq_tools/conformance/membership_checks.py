"""The checks of a client as a member of consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from grpc import StatusCode

from ledgermq.errors import Unavailable, UnknownGroup
from ledgermq_tools.conformance.brokers.cluster import PARTITIONS
from ledgermq_tools.conformance.brokers.faults import Fault, LostAnswer, LostRequest, Refused
from ledgermq_tools.conformance.program import Running
from ledgermq_tools.conformance.trial import Trial, compared

VALUES = 40
SHARE_S_MAX = 60.0


async def reads_all(trial: Trial) -> None:
    """A member reads everything, commits, and leaves."""
    await trial.fill(0, VALUES)
    await _read_alone(trial, trial.group(), 0, VALUES)


async def goes_on(trial: Trial) -> None:
    """A second member begins where the first one has committed."""
    group = trial.group()
    for begin in (0, VALUES):
        await trial.fill(begin, VALUES)
        await _read_alone(trial, group, begin, VALUES)


async def loses_answers(trial: Trial) -> None:
    """Heartbeats and commits are served, and their answers lost."""
    await trial.fill(0, VALUES)
    busy = Refused(Unavailable("the coordinator is busy", retry_after_ms=100))
    lost: list[Fault | None] = [LostAnswer(), busy, None, LostRequest(StatusCode.UNKNOWN)]
    faults: dict[str, list[Fault | None]] = {
        "GroupHeartbeat": lost,
        "CommitOffsets": [LostAnswer(StatusCode.INTERNAL), busy],
        "FetchCommitted": [LostRequest()],
    }
    await _read_alone(trial, trial.group(), 0, VALUES, faults)


async def shares(trial: Trial) -> None:
    """Another member joins: it gets partitions. When it has left, the first one reads them all again."""
    group = trial.group()
    await trial.fill(0, VALUES)
    async with trial.program.running("member", trial.address, trial.topic, group) as running:
        await _expect(trial, running, VALUES)
        seen: set[str] = set()
        async with trial.client.consumer(trial.topic, group=group) as other:
            try:
                async with asyncio.timeout(SHARE_S_MAX):
                    while not other.assignment:
                        await other.fetch(timeout=0.2)
            except TimeoutError:
                trial.find("did not let partitions go, when another member had joined the group")
            await trial.fill(VALUES, VALUES)
            mine = {partition for _, partition in other.assignment}
            wanted = sum(number % PARTITIONS in mine for number in range(VALUES, 2 * VALUES))
            async with asyncio.timeout(SHARE_S_MAX):
                while len(seen) < wanted:
                    seen |= {str(message.value.decode()) for message in await other.fetch(timeout=0.2)}
        await trial.fill(2 * VALUES, VALUES)
        wanted_lines = {str(number) for number in range(3 * VALUES)} - seen
        await running.until(len(wanted_lines))
        await running.end()
        trial.find(running.problem)
        printed = {line.split(" ")[-1] for line in running.lines}
        if missing := wanted_lines - printed:
            trial.find(f"{len(missing)} values reached no member of the group: {sorted(missing)[:5]}")
    await _expect_left(trial, group)


async def _read_alone(
    trial: Trial, group: str, begin: int, values: int, faults: dict[str, list[Fault | None]] | None = None
) -> None:
    """Let the program read so many values as the only member; they come once, and are committed."""
    trial.plan(faults or {})
    async with trial.program.running("member", trial.address, trial.topic, group) as running:
        await _expect(trial, running, values)
        await running.end()
        trial.find(running.problem)
        found = sorted((line.split(" ")[-1] for line in running.lines), key=lambda value: (len(value), value))
        trial.find(*compared(found, [*map(str, range(begin, begin + values))], "printed"))
        trial.find(*_orders(running.lines))
    await _expect_left(trial, group)


async def _expect(trial: Trial, running: Running, lines: int) -> None:
    if not await running.until(lines) and not running.ended:
        trial.find(f"printed {len(running.lines)} of {lines} values in time")


async def _expect_left(trial: Trial, group: str) -> None:
    """The member has committed all that there is, and is no longer in the group."""
    try:
        described = await trial.client.groups.describe(group)
    except UnknownGroup:
        trial.find("joined no group")
        return
    if described.members:
        trial.find("did not leave the group at its end")
    committed = {at.partition: known.stored.offset for at, known in described.committed.items()}
    ends = {partition: len(await trial.stored(partition)) for partition in range(PARTITIONS)}
    if left := sum(end - committed.get(partition, 0) for partition, end in ends.items()):
        trial.find(f"printed all records, but {left} of them are not committed")


def _orders(lines: Sequence[str]) -> list[str]:
    """Return a finding if a partition did not come in the order of its offsets."""
    last: dict[str, int] = {}
    for line in lines:
        partition, offset, _ = line.split(" ", 2)
        if int(offset) <= last.get(partition, -1):
            return [f"partition {partition} came out of order: offset {offset} after {last[partition]}"]
        last[partition] = int(offset)
    return []
