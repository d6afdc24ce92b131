"""The members of groups and the programs with transactions, as processes that are kept running, and
their diaries.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.chaos.children import Children, Place
from tests.chaos.groups import FAILING, PROCESSORS, SENDERS, WRITERS, Cast
from tests.chaos.member import JOINS
from tests.chaos.transaction_judge import Attempt, attempts
from tests.judges.violation import Violation
from tests.simulation.history import Partition

STOP_S_MAX = 60.0


class MemberPlace(Place):
    is_up_says = JOINS

    def __init__(self, number: int, role: str, folder: Path) -> None:
        super().__init__(f"member-{number}")
        self.role = role
        self.has_transactions = role == PROCESSORS or role in WRITERS
        self.diary = folder / f"{self.name}.diary"


def program_of(place: MemberPlace, *, is_kafka: bool) -> str:
    """Return the module that runs there."""
    if is_kafka:
        program = "transactor" if place.has_transactions else "sender" if place.role == SENDERS else "member"
        return f"tests.chaos.librdkafka.{program}"
    if place.has_transactions:
        return "tests.chaos.transactor"
    return "tests.chaos.failing_member" if place.role == FAILING else "tests.chaos.member"


@dataclass(frozen=True, slots=True)
class Entry:
    """`what`: "handled", the offset and name of a record; "committed", the next offset to read."""

    at_ns: int
    what: str
    partition: Partition
    offset: int
    name: str = ""


class Members:
    def __init__(self, children: Children, target: str, seed: int, cast: Cast) -> None:
        self.cast = cast
        self.places = [MemberPlace(number, role, children.folder) for number, role in enumerate(cast.members)]
        self.violations: list[Violation] = []
        self.starts = 0
        self._children, self._target, self._seed = children, target, seed

    def start(self, place: MemberPlace) -> None:
        place.wanted = True
        self.starts += 1
        command = [
            sys.executable,
            "-m",
            program_of(place, is_kafka=self.cast.is_kafka),
            self._target,
            place.role,
            place.name,
            str(self._seed),
            str(place.diary),
        ]
        place.child = self._children.spawn(place.name, command)

    async def stop(self, place: MemberPlace) -> None:
        self.violations += await place.stop(STOP_S_MAX)

    async def keep_running(self) -> None:
        """For ever. None has a reason to end by itself."""
        while True:
            await asyncio.sleep(0.2)
            for place in self.places:
                if place.ended_by_itself:
                    self.violations.append(Violation("member ended", f"{place.ended_with}, {place.last_line}"))
                    self.start(place)

    def diary(self, group: str) -> list[Entry]:
        """Of all members of the group, by time."""
        found = [
            entry
            for place in self.places
            if place.role == group and place.diary.exists()
            for entry in entries(place.diary)
        ]
        return sorted(found, key=lambda entry: entry.at_ns)

    def diaries(self, role: str) -> list[Path]:
        return [place.diary for place in self.places if place.role == role]

    def attempts(self) -> list[Attempt]:
        """Return the transactions of all programs."""
        return [attempt for place in self.places if place.has_transactions for attempt in attempts(place.diary)]

    def figures(self) -> str:
        """What the members did, for the report."""
        lines = []
        for group in self.cast.groups:
            diary = self.diary(group)
            handled = [entry for entry in diary if entry.what == "handled"]
            pause_s = max(((b.at_ns - a.at_ns) / 1e9 for a, b in pairwise(handled)), default=0.0)
            again = len(handled) - len({(entry.partition, entry.offset) for entry in handled})
            lines.append(f"{group} {len(handled)} handled, {again} of them again, at most {pause_s:.1f} s without one")
        return (
            "; ".join(lines) + f"; {self.starts} starts of members; they were told"
            f" {dict(Counter(e.split(' ')[0] for _, e in self.told()))}"
        )

    def told(self) -> Iterator[tuple[str, str]]:
        """(name of the member, error code and message) of every error that a member received."""
        for place in self.places:
            for line in place.diary.read_text().splitlines() if place.diary.exists() else ():
                if line.split(" ")[1:2] == ["told"]:
                    yield place.name, line.split(" ", 2)[2]


def entries(diary: Path) -> Iterator[Entry]:
    """Without the lines in whose midst a member was killed."""
    for line in diary.read_text().split("\n")[:-1]:
        match line.split(" "):
            case [at, "handled", topic, number, offset, name]:
                yield Entry(int(at), "handled", (topic, int(number)), int(offset), name)
            case [at, "committed", topic, number, offset]:
                yield Entry(int(at), "committed", (topic, int(number)), int(offset))
