"""Hold all groups of one partition of `__consumer_offsets`: a fold of its records.

The order of keys within a batch or a snapshot does not matter: each key has its newest value, and
the state is made of these.
"""

from __future__ import annotations

from ledgermq.errors import ResourceExhausted
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares
from ledgermq_offsets.limits import FULL_RETRY_MS, GroupLimits
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.records import (
    Entry,
    FloorEntry,
    GroupEntry,
    MemberEntry,
    OffsetEntry,
    PendingEntry,
    PendingKey,
    decode,
    encode,
)

WHERE = "this partition of the groups"


def check_room(shares: Shares, count: int, principal: int, limits: GroupLimits) -> None:
    """Check that a principal (a hash of its name) may begin one more of `count` groups. Raises ResourceExhausted;
    QuotaExceeded if it has its share of them.
    """
    free = limits.groups_max - count
    if free <= 0:
        raise ResourceExhausted(
            f"there are {limits.groups_max} groups already, which is the maximum", retry_after_ms=FULL_RETRY_MS
        )
    shares.check(principal, 1, free, where=WHERE, retry_after_ms=FULL_RETRY_MS)


class GroupBytes:
    """Counts the bytes that groups take. Each group counts to the principal that began it. Only what makes a group
    larger is refused: heartbeats, commits that replace an offset, and the end of a transaction never are. What the
    coordinator gives out by itself, partitions of members, counts too, so a group may grow above the bound by it.
    `total`: of all groups.
    """

    def __init__(self) -> None:
        self.total = 0
        self.shares = Shares("group_bytes", "bytes of consumer groups")
        self._counted: dict[str, tuple[int, int]] = {}
        """By name: the principal that the group counts to, and its bytes."""

    def note(self, name: str, principal: int, size_bytes: int) -> None:
        """Note what a group takes now; 0: it is gone."""
        former, before = self._counted.pop(name, (NO_PRINCIPAL, 0))
        self.total += size_bytes - before
        self.shares.add(former, -before)
        self.shares.add(principal, size_bytes)
        if size_bytes:
            self._counted[name] = principal, size_bytes

    def check(self, name: str, principal: int, size_bytes: int, more: int, limits: GroupLimits) -> None:
        """Check that a group may grow by so many bytes. `size_bytes`: what it takes now, which may not be noted yet.
        Raises ResourceExhausted; QuotaExceeded if its principal has its share of the bytes.
        """
        if more <= 0:
            return
        grown = size_bytes - self._counted.get(name, (principal, 0))[1]
        free = limits.bytes_max - self.total - grown
        if more > free:
            raise ResourceExhausted(
                f"the groups of this partition take {self.total + grown} bytes, and may take {limits.bytes_max}: delete"
                " groups that are no longer used, or commit less metadata",
                retry_after_ms=FULL_RETRY_MS,
            )
        self.shares.check(principal, grown + more, free, where=WHERE, retry_after_ms=FULL_RETRY_MS)


class OffsetsState:
    """`floor`: the highest epoch of any deleted group. `pending`: by producer id, the groups and
    transactions with staged offsets. `shares`: who began the groups. `sizes`: what they
    take.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.pending: dict[bytes, dict[tuple[str, PendingKey], None]] = {}
        self.floor = 0
        self.shares = Shares("groups", "groups")
        self.sizes = GroupBytes()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record. Raises DataDamaged, FormatNotSupported, and leaves the state unchanged
        then.
        """
        self.take(decode(key, value))

    def take(self, entry: Entry) -> None:
        if isinstance(entry, FloorEntry):
            self.floor = max(self.floor, entry.epoch)
            return
        group = self.groups.get(entry.group)
        if group is None:
            group = self.groups[entry.group] = Group(entry.group)
        match entry:
            case GroupEntry(value=value):
                self.shares.add(group.principal, -1)
                if value is None:  # its members and offsets have separate tombstones
                    group.epoch, group.principal = 0, NO_PRINCIPAL
                else:
                    group.load(value)
                self.shares.add(group.principal)
            case MemberEntry(member_id=member_id, value=member):
                group.load_member(member_id, member)
            case OffsetEntry(partition=partition, value=offset):
                group.load_offset(partition, offset)
            case PendingEntry(key=key, value=pending):
                group.load_pending(key, pending)
                self.note_pending(group, key)
        if not (group.epoch or group.members or group.offsets or group.pending):
            del self.groups[entry.group]
        self._note(group)

    def put(self, group: Group) -> None:
        """Have a group; one that is new counts to the principal that began it."""
        if group.name not in self.groups:
            self.groups[group.name] = group
            self.shares.add(group.principal)

    def drop(self, group: Group) -> None:
        del self.groups[group.name]
        self.shares.add(group.principal, -1)
        self._note(group)

    def drain(self, group: Group) -> list[LogRecord]:
        """Return the records of what has changed in a group; see `Group.drain`."""
        self._note(group)
        return group.drain()

    def check_bytes(self, group: Group, more: int, limits: GroupLimits) -> None:
        """Check that a group may grow by so many bytes. Raises as `GroupBytes.check`."""
        self.sizes.check(group.name, group.principal, group.size_bytes, more, limits)

    def _note(self, group: Group) -> None:
        size_bytes = group.size_bytes if self.groups.get(group.name) is group else 0
        self.sizes.note(group.name, group.principal, size_bytes)

    def note_pending(self, group: Group, key: PendingKey) -> None:
        """Keep `pending` in step, after what a transaction has staged in the group has changed."""
        known = self.pending.setdefault(key.producer_id, {})
        if key in group.pending:
            known[group.name, key] = None
        else:
            known.pop((group.name, key), None)
        if not known:
            del self.pending[key.producer_id]

    def snapshot(self) -> list[LogRecord]:
        """Return what a log cleaned by key would hold, sorted by key."""
        entries: list[Entry] = [FloorEntry(self.floor)] if self.floor else []
        entries += [entry for group in self.groups.values() for entry in group.entries()]
        return sorted((encode(entry) for entry in entries), key=lambda record: record.key)
