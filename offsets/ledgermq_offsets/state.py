"""Hold all groups of one partition of `__consumer_offsets`: a fold of its records.

The order of keys within a batch or a snapshot does not matter: each key has its newest value, and
the state is made of these.
"""

from __future__ import annotations

from ledgermq.errors import ResourceExhausted
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.shares import NO_PRINCIPAL, Shares
from ledgermq_offsets.group import Group
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.records import (
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

FULL_RETRY_MS = 1_000


def check_room(shares: Shares, count: int, principal: int, limits: GroupLimits) -> None:
    """Check that a principal (a hash of its name) may begin one more of `count` groups. Raises ResourceExhausted;
    QuotaExceeded if it has its share of them.
    """
    free = limits.groups_max - count
    if free <= 0:
        raise ResourceExhausted(
            f"there are {limits.groups_max} groups already, which is the maximum", retry_after_ms=FULL_RETRY_MS
        )
    where = "this partition of the groups"
    shares.check(principal, 1, free, where=where, retry_after_ms=FULL_RETRY_MS)


class OffsetsState:
    """`floor`: the highest epoch of any deleted group. `pending`: by producer id, the groups and
    transactions with staged offsets. `shares`: who began the groups.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.pending: dict[bytes, dict[tuple[str, PendingKey], None]] = {}
        self.floor = 0
        self.shares = Shares("groups", "groups")

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

    def put(self, group: Group) -> None:
        """Have a group; one that is new counts to the principal that began it."""
        if group.name not in self.groups:
            self.groups[group.name] = group
            self.shares.add(group.principal)

    def drop(self, group: Group) -> None:
        del self.groups[group.name]
        self.shares.add(group.principal, -1)

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
