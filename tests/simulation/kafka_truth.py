"""Judge groups of Kafka clients by what their members know: who reads which partition, and what they were told.

read by two members           a member of KIP-848 begins with a partition which another one reads that is a member, too:
                              its last heartbeat was answered, and was sent less than a session ago
a former reader commits       a commit is acknowledged that was sent when a later reader's commit already was
read behind a commit          a reader begins below what an acknowledged commit of an earlier reader says
restored too little           a program took over a partition at a committed offset; the ends that it was told do not
                              cover what transactions wrote up to that offset
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.judges.violation import Violation
from tests.simulation.transactions_truth import Seen, processed_as

GroupPartition = tuple[str, int]


@dataclass(eq=False)
class Reader:
    """One membership. `member_until_s`: so long the coordinator cannot have removed it by its session."""

    name: str
    member_until_s: float = 0.0
    holds: dict[int, Holding] = field(default_factory=dict)


@dataclass(eq=False)
class Holding:
    """A partition, from when a member begins with it. `number`: grows from one to the next, whoever has it."""

    reader: Reader
    group: str
    partition: int
    number: int


class Commit(NamedTuple):
    """A commit under way, and the newest holding of its partition of which a commit was acknowledged before."""

    holding: Holding
    offset: int
    newest: int


class Restore(NamedTuple):
    """A program begins with a partition of the input at `offset`, and has been told the `ends` of the outputs."""

    partition: int
    offset: int
    ends: Mapping[str, int]


@dataclass
class Readers:
    violations: list[Violation] = field(default_factory=list)
    done: defaultdict[str, defaultdict[int, set[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    """group -> partition -> offsets that a member has handled"""
    restores: list[Restore] = field(default_factory=list)
    _holdings: int = 0
    _living: defaultdict[GroupPartition, list[Holding]] = field(default_factory=lambda: defaultdict(list))
    _newest: dict[GroupPartition, Holding] = field(default_factory=dict)
    """The newest holding of which a commit was acknowledged."""
    _committed: defaultdict[GroupPartition, int] = field(default_factory=lambda: defaultdict(int))
    """The highest offset that was acknowledged."""

    def take(self, reader: Reader, group: str, partition: int, now_s: float, *, alone: bool) -> Holding:
        """Note that a member begins with a partition. `alone`: nobody who is still a member may have it."""
        self._holdings += 1
        holding = Holding(reader, group, partition, self._holdings)
        for other in self._living[group, partition] if alone else ():
            if other.reader is not reader and now_s < other.reader.member_until_s:
                text = f"{group}: {reader.name} begins with {partition} at {now_s:.3f}, {other.reader.name} reads it"
                self.violations.append(Violation("read by two members", text))
        self._living[group, partition].append(holding)
        reader.holds[partition] = holding
        return holding

    def let_go(self, reader: Reader, partitions: Iterable[int]) -> None:
        for partition in list(partitions):
            holding = reader.holds.pop(partition)
            self._living[holding.group, partition].remove(holding)

    def begin(self, holding: Holding, offset: int) -> int:
        """Note that a member reads from here on; return the offset."""
        committed = self._committed[holding.group, holding.partition]
        newest = self._newest.get((holding.group, holding.partition))
        if offset < committed and (newest is None or newest.number < holding.number):
            text = f"{holding.group}: {holding.reader.name} reads {holding.partition} from {offset}, not {committed}"
            self.violations.append(Violation("read behind a commit", text))
        return offset

    def committing(self, holding: Holding, offset: int) -> Commit:
        newest = self._newest.get((holding.group, holding.partition))
        return Commit(holding, offset, 0 if newest is None else newest.number)

    def committed(self, commit: Commit) -> None:
        holding = commit.holding
        key = holding.group, holding.partition
        if commit.newest > holding.number:
            text = f"{holding.group}: {holding.reader.name} committed {commit.offset} of partition {holding.partition}"
            newest = self._newest[key].reader.name
            self.violations.append(Violation("a former reader commits", f"{text}, which {newest} has committed since"))
        known = self._newest.get(key)
        if known is None or known.number < holding.number:
            self._newest[key] = holding
        self._committed[key] = max(self._committed[key], commit.offset)


def judge_restores(
    restores: Iterable[Restore], visible: Mapping[str, Sequence[Seen]], outputs: Iterable[str]
) -> Iterator[Violation]:
    places: dict[str, int] = {}
    for value, seen in visible.items():
        if seen:
            places[value.rsplit("/", 1)[0]] = seen[0].offset
    for restore in restores:
        for output in outputs:
            late = [
                offset
                for offset in range(restore.offset)
                if places.get(processed_as(output, restore.partition, offset), -1) >= restore.ends[output]
            ]
            if late:
                text = (
                    f"partition {restore.partition} was taken over at {restore.offset}, {output} was said to end at"
                    f" {restore.ends[output]}; what {late} became lies behind that"
                )
                yield Violation("restored too little", text)
