"""Derive the truth about groups from the watched store: the records of `__consumer_offsets` in
ledger order, and the violations among them.

partition with two owners     two members hold it after one batch
committed offset went back    lower than before, and no reset
zombie commit                 under another epoch than the one under which its partition was held when it was
                              committed, or staged in a transaction; or under a lower one than what was committed
                              before, such as a reset
committed offset forgotten    a tombstone for a partition that exists, of a group that no client deleted
skipped                       the group has committed past a record that no member was done with
stale committed offset        an answer is older than an acknowledged commit
phantom commit                an answer is newer than any commit that was sent
committed offsets differ      a new coordinator reports other offsets than the log holds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.classic.records import PREFIX as CLASSIC
from ledgermq_offsets.state.records import Held, MemberEntry, OffsetEntry, OffsetValue, PendingEntry, decode
from tests.judges.violation import Violation
from tests.simulation.watch import WatchedStore


@dataclass
class GroupTruth:
    """`committed` and `held` as of the last record; `commits` and `resets` count records."""

    committed: dict[tuple[str, PartitionId], OffsetValue] = field(default_factory=dict)
    held: defaultdict[str, dict[str, Mapping[PartitionId, Held]]] = field(default_factory=lambda: defaultdict(dict))
    passed_over: defaultdict[tuple[str, PartitionId], set[int]] = field(default_factory=lambda: defaultdict(set))
    """What a reset forwards left out."""
    staged: defaultdict[tuple[str, PartitionId], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    """(epoch, counter) of offsets that were staged: judged then, and not when their transaction commits."""
    violations: list[Violation] = field(default_factory=list)
    commits: int = 0
    resets: int = 0
    gives: int = 0

    def take(self, rows: Sequence[tuple[bytes | None, bytes | None]], living: set[int]) -> None:
        """Decisions of one turn of the coordinator's loop share a batch: a commit may be of before
        or after a move in it.
        """
        entries = [decode(key or b"", value) for key, value in rows if not (key or b"").startswith(CLASSIC)]
        valid = defaultdict(set)
        self._note_epochs(valid)
        for entry in entries:
            if isinstance(entry, MemberEntry):
                self._take_member(entry)
                self._note_epochs(valid, entry.group)
        for entry in entries:
            if isinstance(entry, PendingEntry):
                self._take_pending(entry, valid)
        for entry in entries:
            if isinstance(entry, OffsetEntry):
                self._take_offset(entry, valid[entry.group, entry.partition], living)
        for name in {entry.group for entry in entries if isinstance(entry, MemberEntry)}:
            self._check_owners(name)

    def _note_epochs(self, valid: defaultdict[tuple[str, PartitionId], set[int]], group: str | None = None) -> None:
        for name, members in self.held.items():
            if group in (None, name):
                for held in members.values():
                    for partition, given in held.items():
                        valid[name, partition].add(given.epoch)

    def _take_member(self, entry: MemberEntry) -> None:
        members = self.held[entry.group]
        if entry.value is None:
            members.pop(entry.member_id, None)
            return
        before = members.get(entry.member_id, {})
        self.gives += sum(partition not in before for partition in entry.value.held)
        members[entry.member_id] = entry.value.held

    def _check_owners(self, name: str) -> None:
        owners: dict[PartitionId, str] = {}
        for member_id, held in self.held[name].items():
            for partition in held:
                if partition in owners:
                    self._report(
                        "partition with two owners",
                        f"{name}: {partition} is held by {owners[partition]} and {member_id}",
                    )
                owners[partition] = member_id

    def _take_pending(self, entry: PendingEntry, valid: Mapping[tuple[str, PartitionId], set[int]]) -> None:
        """A transaction's record is written again with each offset that it stages."""
        for partition, offset in entry.value.offsets.items() if entry.value is not None else ():
            key = (entry.group, partition)
            if (offset.epoch, offset.counter) not in self.staged[key]:
                self.staged[key].add((offset.epoch, offset.counter))
                self._judge_epoch(key, offset.epoch, valid[key])

    def _take_offset(self, entry: OffsetEntry, epochs: set[int], living: set[int]) -> None:
        key = (entry.group, entry.partition)
        before = self.committed.get(key)
        if entry.value is None:
            self.committed.pop(key, None)
            if entry.partition[0] in living:
                self._report("committed offset forgotten", f"{entry.group}: {entry.partition}")
            return
        self.committed[key] = entry.value
        if not entry.value.counter:
            self.resets += 1
            begun = before.offset if before is not None and before.offset is not None else 0
            self.passed_over[key] |= set(range(begun, entry.value.offset or 0))
            return
        self.commits += 1
        if before is not None and before.offset is not None and (entry.value.offset or 0) < before.offset:
            self._report(
                "committed offset went back",
                f"{entry.group}: {entry.partition} from {before.offset} to {entry.value.offset}",
            )
        if before is not None and entry.value.epoch < before.epoch:
            what = "a reset" if not before.counter else "another commit"
            self._report(
                "zombie commit",
                f"{entry.group}: {entry.partition} under epoch {entry.value.epoch}, after {what} under {before.epoch}",
            )
        if (entry.value.epoch, entry.value.counter) not in self.staged[key]:
            self._judge_epoch(key, entry.value.epoch, epochs)

    def _judge_epoch(self, key: tuple[str, PartitionId], epoch: int, epochs: set[int]) -> None:
        if epochs and epoch not in epochs:
            self._report("zombie commit", f"{key[0]}: {key[1]} under epoch {epoch}, held under {sorted(epochs)}")

    def _report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))


def group_truth(store: WatchedStore, bundles: Iterable[int], offsets_topic: int, living: set[int]) -> GroupTruth:
    """`living`: ids of topics that are never removed."""
    truth = GroupTruth()
    for bundle in bundles:
        for segment in store.history(bundle):
            for batch in segment.batches if segment.valid else ():
                if batch.topic_id == offsets_topic:
                    truth.take(batch.rows, living)
    return truth


def judge_done(truth: GroupTruth, group: str, done: Mapping[PartitionId, set[int]]) -> list[Violation]:
    """Every record below a committed offset, some member was done with.

    For topics without retention that are read from their beginning.
    """
    found = []
    for (name, partition), value in truth.committed.items():
        if name == group and value.offset is not None:
            skipped = set(range(value.offset)) - done.get(partition, set()) - truth.passed_over[name, partition]
            if skipped:
                found.append(
                    Violation(
                        "skipped",
                        f"{name}: {partition} is committed to {value.offset}, no member had handled {min(skipped)}",
                    )
                )
    return found
