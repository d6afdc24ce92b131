"""The groups of one partition of `__consumer_offsets`: replayed, begun, described, deleted."""

from __future__ import annotations

from typing import TypeVar

from ledgermq.errors import GroupNotEmpty, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets import describe
from ledgermq_offsets.committing import commits
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.names import check_group_name, check_new_group_name
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.groups import OffsetsState, check_room
from ledgermq_offsets.state.records import (
    Entry,
    FloorEntry,
    GroupEntry,
    OffsetEntry,
    encode,
)
from ledgermq_offsets.topics import TopicsView

T = TypeVar("T")


class ServedGroups:
    """A fold of the log, and what every decision does with its group."""

    def __init__(self, limits: GroupLimits, topics: TopicsView) -> None:
        self.state = OffsetsState()
        self._limits = limits
        self._view = topics

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self.state.apply(key, value)

    def groups(self) -> list[pb.GroupInfo]:
        """Return the groups without members and offsets, sorted by name."""
        return [describe.group_info(self.state.groups[name]) for name in sorted(self.state.groups)]

    def readers(self, topic: str) -> list[pb.GroupInfo]:
        """Return the groups that have offsets of a topic, or a member which names it, with these offsets, sorted by
        name.
        """
        found = (self._reader(self.state.groups[name], topic) for name in sorted(self.state.groups))
        return [info for info in found if info is not None]

    def _reader(self, group: Group, topic: str) -> pb.GroupInfo | None:
        subscribed = self._subscribes(group, topic)
        stored = sorted(
            PartitionId(topic_id, number)
            for topic_id, partitions in group.offsets.items()
            for number, value in partitions.items()
            if value.topic == topic
        )
        if not stored and not subscribed:
            return None
        info = describe.group_info(group)
        info.subscribed = subscribed
        info.committed.extend(commits.committed(group, at, topic) for at in stored)
        return info

    def _subscribes(self, group: Group, topic: str) -> bool:
        return any(topic in member.subscription.topics for member in group.members.values())

    def describe(self, group: str, now_s: float) -> pb.GroupInfo:
        """Describe a group. Raises InvalidGroupName, UnknownGroup."""
        return describe.group_details(self._existing(group), now_s)

    def delete(self, group: str, now_ms: int, epoch: int = 0) -> Decision[pb.DeleteGroupResponse]:
        """Delete a group. `epoch`: the one that the caller has seen, so that a later group of the name stays, which
        begins above it; 0: whatever group has the name now.

        Raises InvalidGroupName, GroupNotEmpty; UnknownGroup, also for another epoch; Unavailable while an open
        transaction has staged offsets of it.
        """
        found = self._existing(group)
        if epoch not in (0, found.epoch):
            raise UnknownGroup(
                f"group {group} with the epoch {epoch} does not exist; the group of that name has {found.epoch}"
            )
        if found.member_count:
            raise GroupNotEmpty(f"group {group} has {found.member_count} members; stop them first")
        for partition in found.pending_in:
            commits.check_settled(found, partition)
        return Decision(self._remove(found), pb.DeleteGroupResponse())

    def _existing(self, name: str) -> Group:
        group = self._group(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name}")
        return group

    def _group(self, name: str) -> Group | None:
        return self.state.groups.get(check_group_name(name))

    def _new_group(self, name: str, now_ms: int, principal: int = NO_PRINCIPAL, *, checked: bool = True) -> Group:
        """Return a new group, which joins the groups when it has something to persist.

        It begins above every epoch of any deleted group. Raises ResourceExhausted; QuotaExceeded if the principal has
        its share of the groups.
        """
        if checked:
            check_room(self.state.shares, len(self.state.groups), principal, self._limits)
        group = Group(check_new_group_name(name) if checked else name)
        group.begin(self.state.floor + 1, now_ms)
        group.principal = principal
        return group

    def _remove(self, group: Group) -> list[LogRecord]:
        """Remove a group with all its records. The floor keeps the highest epoch that it drew."""
        assert not group.pending, f"group {group.name} has staged offsets"
        offsets: list[Entry] = [
            OffsetEntry(group.name, PartitionId(t, p), None) for t, topic in group.offsets.items() for p in topic
        ]
        self.state.floor = max(self.state.floor, group.epoch)
        self.state.drop(group)
        entries: list[Entry] = [FloorEntry(self.state.floor), *offsets, GroupEntry(group.name, None)]
        return [encode(entry) for entry in entries]

    def _decided(self, group: Group, answer: T, worth_keeping: bool = True) -> Decision[T]:
        if not worth_keeping and group.name not in self.state.groups:
            return Decision([], answer)
        self.state.put(group)
        woken = tuple((group.name, member_id) for member_id in group.woken)
        group.woken = {}
        return Decision(self.state.drain(group), answer, woken)
