"""Random lives of one group whose members also stage offsets in transactions.

Two producers stage what members read, end their transactions late or never, come back under a later
epoch, and repeat calls. The machine remembers what was answered: an offset that was staged freezes
its partition until its transaction ends, and then it is the committed one, or the one before is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ledgermq.errors import GroupNotEmpty, Unavailable, UnknownGroup, UnknownMember
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.records import PendingKey
from tests.property.group_client import GROUP, SESSION_MS, Sent
from tests.property.group_life import GroupLife, steps, who
from tests.property.group_promises import RETENTION_MS
from tests.worlds.coordinators import staged_in

producers = st.integers(0, 1)


@dataclass
class Producer:
    """`over`: its last transaction that was completed; later calls for it are refused before they
    come to the group.
    """

    producer_id: bytes
    epoch: int = 1
    number: int = 3  # so the first one of the next epoch has a lower number
    over: tuple[int, int] = (0, 0)

    @property
    def key(self) -> PendingKey:
        return PendingKey(self.producer_id, self.epoch, self.number)


@dataclass
class Staged:
    """`before`: the committed offset, which stays. `counter`: with its epoch."""

    before: int | None
    offset: int
    counter: tuple[int, int]


@dataclass
class Open:
    """A transaction that has staged something."""

    parts: dict[PartitionId, Staged] = field(default_factory=dict)


class TransactionLife(GroupLife):
    def __init__(self) -> None:
        super().__init__()
        self.producers = [Producer(bytes([number]) * 16) for number in range(2)]
        self.open: dict[PendingKey, Open] = {}
        self.late_stages: list[tuple[Producer, PendingKey, Sent]] = []

    def group(self) -> Group | None:
        return self.desk.coordinator.state.groups.get(GROUP)

    def offset_of(self, partition: PartitionId) -> int | None:
        group = self.group()
        stored = None if group is None else group.offset_of(partition)
        return None if stored is None else stored.offset

    # Staging

    def stage_one(self, producer: Producer, key: PendingKey, sent: Sent) -> None:
        if key[1:] <= producer.over:
            return
        before = len(self.desk.batches)
        stored = self.offset_of(sent.partition)
        try:
            codes = self.desk.stage(staged_in(key, sent.request))
        except (UnknownMember, GroupNotEmpty):
            return
        holder = next((other for other, known in self.open.items() if sent.partition in known.parts), key)
        if holder != key:
            assert codes != [""], "two transactions have staged an offset of one partition"
        if codes != [""]:
            assert len(self.desk.batches) == before, "an offset was refused, and something was staged"
            return
        assert self.desk.coordinator.has_pending(GROUP, *key), "nothing is staged of what was acknowledged"
        if len(self.desk.batches) == before:
            return  # a repeated call
        assert sent.era == self.eras.get(sent.partition, 0), "an offset of an earlier holder was staged"
        commit = sent.request.commits[0]
        counter = (commit.epoch, commit.counter)
        assert counter > self.counters.get(sent.partition, (0, 0)), "an offset was staged behind a later commit"
        self.open.setdefault(key, Open()).parts[sent.partition] = Staged(stored, commit.offset, counter)

    @rule(number=who, at=st.integers(0, 10), step=steps, producer=producers)
    def stage(self, number: int, at: int, step: int, producer: int) -> None:
        if (sent := self.commit_of(self.owner(number), at, step)) is not None:
            self.stage_one(self.producers[producer], self.producers[producer].key, sent)

    @rule(number=who, at=st.integers(0, 10), step=steps, producer=producers)
    def stage_later(self, number: int, at: int, step: int, producer: int) -> None:
        if (sent := self.commit_of(self.owner(number), at, step)) is not None:
            self.late_stages.append((self.producers[producer], self.producers[producer].key, sent))

    @rule(number=who, at=st.integers(0, 10), step=steps, producer=producers)
    def a_commit_overtakes_a_stage(self, number: int, at: int, step: int, producer: int) -> None:
        first = self.commit_of(self.owner(number), at, step)
        second = self.commit_of(self.owner(number), at, 0)
        if first is not None and second is not None:
            self.deliver(second)
            self.stage_one(self.producers[producer], self.producers[producer].key, first)

    @precondition(lambda self: self.late_stages)
    @rule(at=st.integers(0, 1000), again=st.booleans())
    def a_late_stage_comes(self, at: int, again: bool) -> None:
        late = self.late_stages[at % len(self.late_stages)]
        if not again:
            self.late_stages.remove(late)
        self.stage_one(*late)

    @precondition(lambda self: self.late_commits or self.late_stages)
    @rule(at=st.integers(0, 1000), producer=producers)
    def what_was_to_be_committed_is_staged(self, at: int, producer: int) -> None:
        """A careless program repeats in a transaction what it has committed plainly, and the other
        way round.
        """
        if self.late_commits:
            sent = self.late_commits[at % len(self.late_commits)]
            self.stage_one(self.producers[producer], self.producers[producer].key, sent)
        else:
            self.deliver(self.late_stages[at % len(self.late_stages)][2])

    @rule(topic=st.sampled_from(("t", "u")), number=st.integers(0, 3), step=st.integers(0, 5), producer=producers)
    def stage_without_membership(self, topic: str, number: int, step: int, producer: int) -> None:
        found = self.desk.committed(GROUP, topic, number)
        if not found.HasField("error"):
            partition = PartitionId(found.topic_id, number)
            sent = self.sent("", partition, found.epoch, found.counter + 1, found.offset + step, topic)
            self.stage_one(self.producers[producer], self.producers[producer].key, sent)

    # The end of transactions

    @rule(producer=producers, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        ending = self.producers[producer]
        self.end_one(ending, commit)
        ending.number += 1

    @rule(producer=producers)
    def come_back(self, producer: int) -> None:
        """What the epoch before has staged waits until this one completes a transaction."""
        self.producers[producer].epoch += 1
        self.producers[producer].number = 1

    def end_one(self, ending: Producer, commit: bool) -> None:
        key = ending.key
        ending.over = key[1:]
        self.desk.settle(key, *[GROUP] * commit)
        over = [known for known in self.open if known.producer_id == key.producer_id and known[1:] <= key[1:]]
        for known in over:
            for partition, staged in self.open.pop(known).parts.items():
                if self.catalog.is_removed(partition[0]):
                    continue
                if known == key and commit:
                    self.counters[partition] = staged.counter
                    assert self.offset_of(partition) == staged.offset, "not committed with its transaction"
                else:
                    assert self.offset_of(partition) == staged.before, "an aborted transaction left its offset"

    # What waits

    @invariant()
    def staged_offsets_freeze_their_partitions(self) -> None:
        group = self.group()
        assert set(self.open) == set(group.pending if group is not None else ()), "staged, and not known"
        for known in self.open.values():
            for partition, staged in known.parts.items():
                topic = self.catalog.by_id(partition[0])
                if topic is None:
                    continue
                assert self.offset_of(partition) == staged.before, "moved while an offset is staged"
                found = self.desk.committed(GROUP, topic.name, partition[1])
                assert found.error.code == "UNAVAILABLE", "an offset is told while another one is staged"

    @rule()
    def delete_group(self) -> None:
        try:
            self.desk.decided(self.desk.coordinator.delete(GROUP, self.desk.now_ms))
        except (UnknownGroup, GroupNotEmpty):
            return
        except Unavailable:
            assert self.open
            return
        assert not self.open, "a group with staged offsets was deleted"
        self.everything_may_go_back()

    @rule()
    def wait_until_all_expires(self) -> None:
        there_was_one = self.group() is not None
        self.desk.wait(SESSION_MS / 1000 + RETENTION_MS / 1000 + self.desk.limits.expiry_check_s + 1)
        self.note_holders()
        if self.open:
            return
        assert self.group() is None
        if there_was_one:
            self.everything_may_go_back()
