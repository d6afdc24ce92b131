"""Hold one group: what is persisted of it, its indexes, and the few ways in which it changes.

Every change of persisted state goes through a method here, which notes the keys that it touched;
`drain` turns these into records. So the records of a decision are always the newest values of all
that it changed, in one batch.

Invariants: a partition has at most one holder, `holders[p]` (asserted by `give`), and at most one
transaction with a staged offset, `pending_in[p]` (asserted by `set_pending`). An epoch is drawn
at most once for each decision, and never reused. A member's `changed_epoch` is the newest epoch at
which its partitions have changed.
"""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets.limits import GROUP_BYTES, HELD_BYTES, MEMBER_BYTES, OFFSET_BYTES
from ledgermq_offsets.state.records import (
    Entry,
    GroupEntry,
    GroupValue,
    Held,
    MemberEntry,
    MemberValue,
    OffsetEntry,
    OffsetValue,
    PendingEntry,
    PendingKey,
    PendingValue,
    Subscription,
    encode,
    size_of,
)
from ledgermq_offsets.topics import TopicSize

RESETS_KEPT = 16
"""Resets of a group that are recognized when they are repeated."""


class Member:
    """`held`, `away` and `subscription` are persisted; the rest starts again with each coordinator.

    `heard_s`: time of the last heartbeat. `letting_go_s`: since when the member holds withdrawn
    partitions. `seen_epoch`: the epoch that it last reported.
    """

    def __init__(self, member_id: str, subscription: Subscription, heard_s: float, changed_epoch: int) -> None:
        self.member_id = member_id
        self.subscription = subscription
        self.away = False
        self.held: dict[PartitionId, Held] = {}
        self.withdrawn = 0
        self.heard_s = heard_s
        self.letting_go_s: float | None = None
        self.changed_epoch = changed_epoch
        self.seen_epoch = 0
        self.given: list[pb.GivenPartition] | None = None  # what it may hold, as it is sent; None: not computed yet

    @property
    def silent_at_s(self) -> float:
        return self.heard_s + self.subscription.session_timeout_ms / 1000

    @property
    def late_at_s(self) -> float | None:
        """Return the time by which the member has to have released its withdrawn partitions."""
        return None if self.letting_go_s is None else self.letting_go_s + self.subscription.rebalance_timeout_ms / 1000


class Group:
    """`target`: the member that each partition will go to, after all have released; computed, never
    persisted.

    `dirty`: the target has to be computed again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.bare_epoch = 0
        self.principal = NO_PRINCIPAL
        self.empty_since_ms = 0
        self.assignor = ""
        self.resets: dict[bytes, int] = {}  # the newest: nonce -> the offsets of its call that were refused, as bits
        self.members: dict[str, Member] = {}
        self.classic_members = 0  # of `ledgermq_offsets.classic`, which has their records; then there are no others
        self.offsets: dict[int, dict[int, OffsetValue]] = {}
        self.offset_count = 0
        self.stated_bytes = 0  # of its members, committed and staged offsets
        self.pending: dict[PendingKey, PendingValue] = {}
        self.pending_in: dict[PartitionId, PendingKey] = {}  # the transaction that has staged an offset there
        self.names: dict[int, str] = {}  # names of topics that are or were held, by id
        self.holders: dict[PartitionId, str] = {}
        self.statics: dict[str, str] = {}  # instance id -> member id
        self.target: dict[PartitionId, str] = {}
        self.topics: dict[int, TopicSize] = {}  # the topics that the target was computed for
        self.topics_version = -1
        self.dirty = True
        self.computed_s: float | None = None
        self.due_s: float | None = None  # the coordinator looks at the group then, at the latest
        self.expiry_ms = 0  # nothing of the group expires before this time
        self.woken: dict[str, None] = {}  # a dict for its order, which does not depend on hashes
        self._drawn = False
        self._touched: bool = False
        self._touched_members: dict[str, None] = {}
        self._touched_offsets: dict[PartitionId, None] = {}
        self._touched_pending: dict[PendingKey, None] = {}

    # Epochs

    def draw(self) -> int:
        """Return the epoch of this decision: higher than any that the group has had."""
        if not self._drawn:
            self.epoch += 1
            self._drawn = self._touched = True
        return self.epoch

    def epoch_in_force(self, partition: PartitionId) -> int:
        """Return the epoch that a commit of the partition has to name."""
        if (holder := self.holders.get(partition)) is not None:
            return self.members[holder].held[partition].epoch
        stored = self.offset_of(partition)
        return self.bare_epoch if stored is None else max(self.bare_epoch, stored.epoch)

    # Members

    @property
    def member_count(self) -> int:
        """Return the number of members, of either kind."""
        return len(self.members) or self.classic_members

    def note_classic(self, count: int, now_ms: int) -> None:
        """Note how many members of the classic kind there are. Without any, the group is empty from now on."""
        if bool(count) != bool(self.classic_members):
            self.empty_since_ms = 0 if count else max(1, now_ms)
            self.expiry_ms = 0
            self._touched = True
        self.classic_members = count

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        self.stated_bytes += MEMBER_BYTES + member.subscription.size_bytes
        if member.subscription.instance_id:
            self.statics[member.subscription.instance_id] = member.member_id
        if self.empty_since_ms:
            self.empty_since_ms = 0
            self._touched = True
        self.dirty = True
        self._touched_members[member.member_id] = None

    def subscribe(self, member: Member, subscription: Subscription) -> None:
        if self.statics.get(member.subscription.instance_id) == member.member_id:
            del self.statics[member.subscription.instance_id]
        self.stated_bytes += subscription.size_bytes - member.subscription.size_bytes
        member.subscription = subscription
        if subscription.instance_id:
            self.statics[subscription.instance_id] = member.member_id
        self.dirty = True
        self._touched_members[member.member_id] = None

    def remove(self, member: Member, now_ms: int) -> None:
        """Remove a member; its partitions are free at once."""
        for partition in member.held:
            del self.holders[partition]
        if self.statics.get(member.subscription.instance_id) == member.member_id:
            del self.statics[member.subscription.instance_id]
        del self.members[member.member_id]
        self.stated_bytes -= MEMBER_BYTES + member.subscription.size_bytes
        self.dirty = True
        self.woken[member.member_id] = None
        self._touched_members[member.member_id] = None
        if not self.members:
            self.empty_since_ms = max(1, now_ms)
            self.target, self.topics, self.names = {}, {}, {}
            self.renew_bare()

    def set_away(self, member: Member, away: bool) -> None:
        member.away = away
        self._touched_members[member.member_id] = None

    def use_assignor(self, name: str) -> None:
        if self.assignor != name:
            self.assignor = name
            self._touched = True

    # Partitions

    def give(self, member: Member, partition: PartitionId, topic: str) -> None:
        """Give a partition to a member, under the decision's epoch.

        If the member holds it already, it drops what it has of the partition and begins again.
        """
        assert self.holders.get(partition, member.member_id) == member.member_id, (
            f"{partition} is held by another member"
        )
        before = member.held.get(partition)
        member.held[partition] = Held(self.draw(), False)
        self.holders[partition] = member.member_id
        self.names[partition[0]] = topic
        if before is not None and before.withdrawn:
            self._one_less_withdrawn(member)
        self._changed(member)

    def withdraw(self, member: Member, partition: PartitionId, now_s: float) -> None:
        """Withdraw a partition: the member has to release it. Until it confirms that, no other
        member gets the partition.
        """
        held = member.held[partition]
        if held.withdrawn:
            return
        member.held[partition] = Held(held.epoch, True, self.draw())
        member.withdrawn += 1
        if member.letting_go_s is None:
            member.letting_go_s = now_s
        self._changed(member)

    def release(self, member: Member, partition: PartitionId) -> None:
        """Release a partition: the member no longer holds it."""
        held = member.held.pop(partition)
        del self.holders[partition]
        if held.withdrawn:
            self._one_less_withdrawn(member)
        member.given = None
        self._touched_members[member.member_id] = None

    def renew(self, member: Member, partition: PartitionId) -> None:
        """Renew a partition's epoch, so that work that began under the former epoch can no longer
        commit.
        """
        member.held[partition] = member.held[partition]._replace(epoch=self.draw())
        self._changed(member)

    def keep_names(self) -> None:
        """Keep only the names of topics that are held."""
        self.names = {topic_id: self.names[topic_id] for topic_id in {topic_id for topic_id, _ in self.holders}}

    def notify(self, member: Member) -> None:
        """Notify a member that its partitions have changed, where no record of a partition says so."""
        self.draw()
        self._changed(member)

    def _one_less_withdrawn(self, member: Member) -> None:
        member.withdrawn -= 1
        if not member.withdrawn:
            member.letting_go_s = None

    def _changed(self, member: Member) -> None:
        member.changed_epoch = self.epoch
        member.given = None
        self.woken[member.member_id] = None
        self._touched_members[member.member_id] = None

    # Offsets

    def offset_of(self, partition: PartitionId) -> OffsetValue | None:
        return self.offsets.get(partition[0], {}).get(partition[1])

    def set_offset(self, partition: PartitionId, value: OffsetValue | None) -> None:
        self.load_offset(partition, value)
        self._touched_offsets[partition] = None
        self.expiry_ms = 0

    def has_space(self, wanted: int, partitions_max: int) -> bool:
        """Return True if so many more partitions may get an offset. Staged offsets count already,
        because nothing may refuse them when their transaction is committed.
        """
        if self.offset_count + len(self.pending_in) + wanted <= partitions_max:
            return True
        promised = sum(self.offset_of(partition) is None for partition in self.pending_in)
        return self.offset_count + promised + wanted <= partitions_max

    def note_reset(self, nonce: bytes, refused: int) -> None:
        """Remember a reset by the nonce of its call, and the newest `RESETS_KEPT` in all."""
        self.resets = dict(
            [*((known, bits) for known, bits in self.resets.items() if known != nonce), (nonce, refused)][-RESETS_KEPT:]
        )
        self._touched = True

    def set_pending(self, key: PendingKey, value: PendingValue | None) -> None:
        """Replace what a transaction has staged; None: it is over."""
        if value is not None:
            assert all(self.pending_in.get(partition, key) == key for partition in value.offsets), (
                f"group {self.name}: two transactions have staged an offset of one partition"
            )
        self.load_pending(key, value)
        self._touched_pending[key] = None

    def renew_bare(self) -> None:
        """Renew the epoch for commits outside of membership; such a caller has to fetch again
        before its next commit.
        """
        self.bare_epoch = self.draw()

    # Records

    @property
    def size_bytes(self) -> int:
        """Return about how much memory it takes."""
        resets = sum(OFFSET_BYTES + bits.bit_length() // 8 for bits in self.resets.values())
        return GROUP_BYTES + self.stated_bytes + HELD_BYTES * len(self.holders) + resets

    def begin(self, epoch: int, now_ms: int) -> None:
        """Begin a new group, without members."""
        self.epoch = self.bare_epoch = epoch
        self.empty_since_ms = max(1, now_ms)
        self._touched = True

    def value(self) -> GroupValue:
        resets = tuple(self.resets.items())
        return GroupValue(self.epoch, self.bare_epoch, self.empty_since_ms, self.assignor, resets, self.principal)

    def member_value(self, member: Member) -> MemberValue:
        names = {topic_id: self.names[topic_id] for topic_id in {topic_id for topic_id, _ in member.held}}
        return MemberValue(member.subscription, member.away, dict(member.held), names)

    def drain(self) -> list[LogRecord]:
        """Return the records of everything that was touched since the last drain."""
        entries: list[Entry] = [GroupEntry(self.name, self.value())] if self._touched else []
        for member_id in self._touched_members:
            member = self.members.get(member_id)
            entries.append(MemberEntry(self.name, member_id, None if member is None else self.member_value(member)))
        entries += [OffsetEntry(self.name, partition, self.offset_of(partition)) for partition in self._touched_offsets]
        entries += [PendingEntry(self.name, key, self.pending.get(key)) for key in self._touched_pending]
        self._drawn = self._touched = False
        self._touched_members, self._touched_offsets, self._touched_pending = {}, {}, {}
        return [encode(entry) for entry in entries]

    def entries(self) -> list[Entry]:
        """Return everything that is persisted of the group now."""
        members: list[Entry] = [
            MemberEntry(self.name, m.member_id, self.member_value(m)) for m in self.members.values()
        ]
        offsets = [
            OffsetEntry(self.name, PartitionId(t, p), value)
            for t, topic in self.offsets.items()
            for p, value in topic.items()
        ]
        pending = [PendingEntry(self.name, key, value) for key, value in self.pending.items()]
        return [GroupEntry(self.name, self.value()), *members, *offsets, *pending]

    # Replay

    def load(self, value: GroupValue) -> None:
        self.epoch, self.bare_epoch = value.epoch, value.bare_epoch
        self.empty_since_ms, self.assignor = value.empty_since_ms, value.assignor
        self.resets, self.principal = dict(value.resets), value.principal

    def load_member(self, member_id: str, value: MemberValue | None) -> None:
        """Load a member, in any order of the keys: in a batch that moves a partition, its new
        holder may come first.
        """
        before = self.members.pop(member_id, None)
        if before is not None:
            self.stated_bytes -= MEMBER_BYTES + before.subscription.size_bytes
            for partition in before.held:
                if self.holders.get(partition) == member_id:
                    del self.holders[partition]
            if self.statics.get(before.subscription.instance_id) == member_id:
                del self.statics[before.subscription.instance_id]
        if value is None:
            return
        member = self.members[member_id] = Member(member_id, value.subscription, 0.0, 0)
        self.stated_bytes += MEMBER_BYTES + value.subscription.size_bytes
        member.away = value.away
        member.held = dict(value.held)
        member.withdrawn = sum(held.withdrawn for held in value.held.values())
        self.holders |= dict.fromkeys(value.held, member_id)
        self.names |= value.names
        if value.subscription.instance_id:
            self.statics[value.subscription.instance_id] = member_id

    def load_offset(self, partition: PartitionId, value: OffsetValue | None) -> None:
        topic_id, number = partition
        topic = self.offsets.setdefault(topic_id, {})
        self.offset_count -= number in topic
        self.stated_bytes += size_of(value) - size_of(topic.pop(number, None))
        if value is not None:
            topic[number] = value
            self.offset_count += 1
        elif not topic:
            del self.offsets[topic_id]

    def load_pending(self, key: PendingKey, value: PendingValue | None) -> None:
        """Load what a transaction has staged, in any order of the keys: in a batch, the offsets of
        the next transaction may come before the end of this one.
        """
        before = self.pending.pop(key, None)
        self.stated_bytes += size_of(value) - size_of(before)
        if before is not None:
            for partition in before.offsets:
                if self.pending_in.get(partition) == key:
                    del self.pending_in[partition]
        if value is not None:
            self.pending[key] = value
            self.pending_in |= dict.fromkeys(value.offsets, key)
