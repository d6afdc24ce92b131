"""Read everything from the topic once more, by a group of three processes, one of which is killed:
every flight at least once.

The group gives the partitions of the killed member to the others, which continue at its last
commit. What it had handled since then is delivered again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consuming import SILENCE_S_MAX, WrongData
from member import GROUP
from rich.progress import Progress

import ledgermq

MEMBERS = ("one", "two", "three")


@dataclass(frozen=True)
class Shared:
    """`again`: records that were handled twice.

    `gap_s`: time from the kill until a partition of the killed member continued.
    """

    records: int
    again: int
    killed: str
    partitions: int
    gap_s: float
    lag: int


@dataclass
class Coverage:
    """`ends`: by partition. Counts what members report as handled."""

    ends: Mapping[int, int]
    handled: int = 0
    again: int = 0
    holders: dict[int, str] = field(default_factory=dict)
    _seen: dict[int, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = {partition: bytearray(end) for partition, end in self.ends.items()}

    @property
    def missing(self) -> int:
        return sum(self.ends.values()) - self.handled

    def missing_of(self, member: str) -> int:
        """Return the missing records of the partitions that the member reported last."""
        return sum(self._seen[partition].count(0) for partition, holder in self.holders.items() if holder == member)

    def add(self, member: str, partition: int, first: int, count: int) -> None:
        """Add a report. Raises WrongData for records that are not in the topic."""
        seen = self._seen.get(partition, bytearray())
        if not 0 <= first <= first + count <= len(seen):
            raise WrongData(
                f"member {member} was given offsets {first} to {first + count - 1} of partition {partition}"
            )
        before = sum(seen[first : first + count])
        seen[first : first + count] = b"\x01" * count
        self.handled += count - before
        self.again += before
        self.holders[partition] = member


class Group:
    def __init__(self, client: ledgermq.Client, target: str, folder: Path, coverage: Coverage) -> None:
        self._client = client
        self.coverage = coverage
        self.killed = ""
        self.lost: set[int] = set()
        self.killed_at = self.resumed_at = 0.0
        self.heard_at = time.monotonic()
        self._target = target
        self._folder = folder
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, progress: Progress) -> None:
        """Run until everything is handled. Raises WrongData."""
        bar = progress.add_task("Consuming", total=self.coverage.handled + self.coverage.missing, note="")
        try:
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(self._member(name)) for name in MEMBERS]
                await self._begin_together()
                while self.coverage.missing:
                    progress.update(
                        bar, completed=self.coverage.handled, note=f"member {self.killed} killed" if self.killed else ""
                    )
                    if not self.killed and self._is_under_way:
                        self._kill()
                    if time.monotonic() - self.heard_at > SILENCE_S_MAX:
                        raise WrongData(f"{self.coverage.missing} records were not handled by any member")
                    await asyncio.sleep(0.02)
                progress.update(bar, completed=self.coverage.handled)
                await self._stop()
                await asyncio.wait(readers)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await self._stop()

    async def _begin_together(self) -> None:
        """Begin once each member has its share of the partitions.

        Raises WrongData if that takes too long.
        """
        until = time.monotonic() + SILENCE_S_MAX
        while not await self._is_complete():
            if time.monotonic() > until:
                raise WrongData("the members of the group did not all get partitions")
            await asyncio.sleep(0.1)
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write(b"go\n")

    async def _is_complete(self) -> bool:
        try:
            group = await self._client.groups.describe(GROUP)
        except ledgermq.errors.UnknownGroup:
            return False
        return (
            len(group.members) == len(MEMBERS)
            and all(member.owned for member in group.members)
            and group.summary.state == "stable"
        )

    async def _member(self, name: str) -> None:
        script = Path(__file__).with_name("member.py")
        with (self._folder / f"member-{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(script),
                self._target,
                name,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._processes[name] = process
        assert process.stdout is not None
        async for line in process.stdout:
            self.heard_at = time.monotonic()
            if line == b"ready\n":
                continue
            if not line.endswith(b"\n"):
                break  # killed in the middle of a line: an incomplete line counts as not handled
            partition, first, count = map(int, line.split())
            self.coverage.add(name, partition, first, count)
            if name != self.killed and partition in self.lost and not self.resumed_at:
                self.resumed_at = self.heard_at

    @property
    def _is_under_way(self) -> bool:
        return self.coverage.handled >= self.coverage.missing / 2 and len(set(self.coverage.holders.values())) == len(
            MEMBERS
        )

    def _kill(self) -> None:
        self.killed = max(MEMBERS, key=self.coverage.missing_of)
        self.lost = {partition for partition, holder in self.coverage.holders.items() if holder == self.killed}
        self._processes[self.killed].kill()
        self.killed_at = time.monotonic()

    async def _stop(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()


async def share(client: ledgermq.Client, target: str, topic: str, folder: Path, progress: Progress) -> Shared:
    """Share the topic. Raises WrongData."""
    coverage = Coverage(await client.list_offsets(topic))
    group = Group(client, target, folder, coverage)
    await group.run(progress)
    lag = sum(lag.messages for lag in (await client.groups.lag(GROUP)).values())
    if lag:
        raise WrongData(f"the group's lag is {lag}, though its members have stopped at the end")
    if not group.resumed_at:
        raise WrongData(f"no member was killed early enough to be missed: {group.killed or 'none'}")
    return Shared(
        coverage.handled, coverage.again, group.killed, len(group.lost), group.resumed_at - group.killed_at, lag
    )
