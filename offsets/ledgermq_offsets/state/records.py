"""Encode and decode the records of `__consumer_offsets`: typed entries, and their bytes.

    key                                       value
    floor                                     Floor    highest epoch of any deleted group
    group/<group>                             Group    its epoch, since when it is empty
    member/<group>/<member id>                Member   its subscription, and what it holds under which epochs
    offset/<group>/<topic id>/<partition>     Offset   what is committed
    pending/<group>/<producer id>/            Pending  what a transaction has staged: its epoch and number end the key,
            <epoch>/<number>                           so aborting one transaction never drops another one's offsets

No value: the key is deleted. Names hold no "/", so keys need no escapes. Invariants:
`decode(encode(entry)) == entry`; equal entries have equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from ledgermq.errors import DataDamaged
from ledgermq.protocol.naming.names import NAME_PATTERN
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import NUMBER, LogRecord, RecordCodec
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt
from ledgermq_offsets.limits import OFFSET_BYTES


class Held(NamedTuple):
    """`epoch`: the epoch under which it was given.

    `withdrawn`: the member has to release it, and may commit it until it confirms that. `withdrawn_in`: the epoch of
    that; 0: it is not known, because an earlier release has written it.
    """

    epoch: int
    withdrawn: bool
    withdrawn_in: int = 0


@dataclass(frozen=True, slots=True)
class Subscription:
    """`topics`: sorted, without duplicates; times in milliseconds, never 0; `assignor`: a known
    name. `filter`: "*" if all messages pass; empty if it is not known, because a coordinator of an earlier
    release has written the member. `kafka_host`: where a client of the Kafka protocol runs; empty: one of our own.
    """

    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    assignor: str = "uniform"
    instance_id: str = ""
    rack: str = ""
    client_id: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    filter: str = ""
    kafka_host: str = ""

    @property
    def size_bytes(self) -> int:
        """Return the approximate size of the subscription in the member's record."""
        texts = (self.topic_pattern, self.instance_id, self.rack, self.client_id, self.filter, self.kafka_host)
        return sum(len(name) + 4 for name in self.topics) + sum(len(text.encode()) for text in texts)


@dataclass(frozen=True, slots=True)
class GroupValue:
    """`empty_since_ms`: wall clock; 0 if it has members. `resets`: nonces of the newest resets, oldest first, each
    with the offsets of its call that were refused, as bits. `principal`: a hash of the one that began the group; 0: not
    known.
    """

    epoch: int
    bare_epoch: int
    empty_since_ms: int
    assignor: str
    resets: tuple[tuple[bytes, int], ...] = ()
    principal: int = NO_PRINCIPAL


@dataclass(frozen=True, slots=True)
class MemberValue:
    """`names`: names of the topics that are held, by id."""

    subscription: Subscription
    away: bool = False
    held: Mapping[PartitionId, Held] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """`offset`: the next one to read; None if it was reset to nothing. `counter`: that of the
    newest commit under `epoch`.
    """

    offset: int | None
    metadata: str
    commit_ms: int
    epoch: int
    counter: int
    topic: str

    @property
    def size_bytes(self) -> int:
        return OFFSET_BYTES + len(self.metadata.encode())


class PendingKey(NamedTuple):
    """Names a transaction. The order of a producer's transactions is that of (epoch, number)."""

    producer_id: bytes
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """`epoch`: in force when the offset was staged. `counter`: under this epoch, as of commits."""

    offset: int
    metadata: str
    epoch: int
    counter: int
    topic: str

    @property
    def size_bytes(self) -> int:
        return OFFSET_BYTES + len(self.metadata.encode())


@dataclass(frozen=True, slots=True)
class PendingValue:
    """Offsets that one transaction has staged. `coordinator`: the partition of `__transactions`
    whose owner decides about it. `staged_ms`: when the first of them was staged.
    """

    transactional_id: str
    coordinator: int
    staged_ms: int
    offsets: Mapping[PartitionId, PendingOffset]

    @property
    def size_bytes(self) -> int:
        return sum(staged.size_bytes for staged in self.offsets.values())


def size_of(value: OffsetValue | PendingValue | None) -> int:
    """Return about how much memory it takes; 0 if there is none."""
    return 0 if value is None else value.size_bytes


@dataclass(frozen=True, slots=True)
class FloorEntry:
    epoch: int


@dataclass(frozen=True, slots=True)
class GroupEntry:
    group: str
    value: GroupValue | None


@dataclass(frozen=True, slots=True)
class MemberEntry:
    group: str
    member_id: str
    value: MemberValue | None


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    group: str
    partition: PartitionId
    value: OffsetValue | None


@dataclass(frozen=True, slots=True)
class PendingEntry:
    group: str
    key: PendingKey
    value: PendingValue | None


Entry = FloorEntry | GroupEntry | MemberEntry | OffsetEntry | PendingEntry
CODEC: RecordCodec[Entry] = RecordCodec(keys.OFFSETS_TOPIC)

_NAME = f"({NAME_PATTERN})".encode()
_GROUP = re.compile(rb"group/" + _NAME + rb"\Z")
_MEMBER = re.compile(rb"member/" + _NAME + rb"/" + _NAME + rb"\Z")
_OFFSET = re.compile(rb"offset/" + _NAME + rb"/" + NUMBER + rb"/" + NUMBER + rb"\Z")
_PENDING = re.compile(rb"pending/" + _NAME + rb"/([0-9a-f]{32})/" + NUMBER + rb"/" + NUMBER + rb"\Z")
_FLOOR = b"floor"


def encode(entry: Entry) -> LogRecord:
    match entry:
        case FloorEntry(epoch):
            return CODEC.record("floor", fmt.Floor(version=CODEC.version, epoch=epoch))
        case GroupEntry(group, value):
            return CODEC.record(f"group/{group}", None if value is None else _group_to(value))
        case MemberEntry(group, member_id, member):
            return CODEC.record(f"member/{group}/{member_id}", None if member is None else _member_to(member))
        case OffsetEntry(group, (topic_id, partition), offset):
            return CODEC.record(
                f"offset/{group}/{topic_id}/{partition}", None if offset is None else _offset_to(offset)
            )
        case PendingEntry(group, (producer_id, epoch, number), pending):
            key = f"pending/{group}/{producer_id.hex()}/{epoch}/{number}"
            return CODEC.record(key, None if pending is None else _pending_to(pending))


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if found := _OFFSET.match(key):
        at = PartitionId(int(found[2]), int(found[3]))
        return OffsetEntry(found[1].decode(), at, None if value is None else _offset_of(value))
    if found := _PENDING.match(key):
        of = PendingKey(bytes.fromhex(found[2].decode()), int(found[3]), int(found[4]))
        return PendingEntry(found[1].decode(), of, None if value is None else _pending_of(value))
    if found := _MEMBER.match(key):
        return MemberEntry(found[1].decode(), found[2].decode(), None if value is None else _member_of(value))
    if found := _GROUP.match(key):
        return GroupEntry(found[1].decode(), None if value is None else _group_of(value))
    if key == _FLOOR and value is not None:
        return FloorEntry(CODEC.value(fmt.Floor, value).epoch)
    return None


def _group_to(value: GroupValue) -> fmt.Group:
    return fmt.Group(
        version=CODEC.version,
        epoch=value.epoch,
        bare_epoch=value.bare_epoch,
        empty_since_ms=value.empty_since_ms,
        assignor=value.assignor,
        resets=[
            fmt.Reset(nonce=nonce, refused=refused.to_bytes((refused.bit_length() + 7) // 8, "little"))
            for nonce, refused in value.resets
        ],
        principal=value.principal,
    )


def _group_of(data: bytes) -> GroupValue:
    group = CODEC.value(fmt.Group, data)
    resets = tuple((reset.nonce, int.from_bytes(reset.refused, "little")) for reset in group.resets)
    return GroupValue(group.epoch, group.bare_epoch, group.empty_since_ms, group.assignor, resets, group.principal)


def _offset_to(value: OffsetValue) -> fmt.Offset:
    return fmt.Offset(
        version=CODEC.version,
        offset=value.offset,
        metadata=value.metadata,
        commit_ms=value.commit_ms,
        epoch=value.epoch,
        counter=value.counter,
        topic=value.topic,
    )


def _offset_of(data: bytes) -> OffsetValue:
    stored = CODEC.value(fmt.Offset, data)
    offset = stored.offset if stored.HasField("offset") else None
    return OffsetValue(offset, stored.metadata, stored.commit_ms, stored.epoch, stored.counter, stored.topic)


def _pending_to(value: PendingValue) -> fmt.Pending:
    pending = fmt.Pending(
        version=CODEC.version,
        transactional_id=value.transactional_id,
        coordinator=value.coordinator,
        staged_ms=value.staged_ms,
    )
    for (topic_id, partition), staged in sorted(value.offsets.items()):
        pending.offsets.add(
            topic_id=topic_id,
            partition=partition,
            topic=staged.topic,
            offset=staged.offset,
            metadata=staged.metadata,
            epoch=staged.epoch,
            counter=staged.counter,
        )
    return pending


def _pending_of(data: bytes) -> PendingValue:
    pending = CODEC.value(fmt.Pending, data)
    offsets = {
        PartitionId(staged.topic_id, staged.partition): PendingOffset(
            staged.offset, staged.metadata, staged.epoch, staged.counter, staged.topic
        )
        for staged in pending.offsets
    }
    return PendingValue(pending.transactional_id, pending.coordinator, pending.staged_ms, offsets)


def _member_to(value: MemberValue) -> fmt.Member:
    by_topic: dict[int, fmt.HeldTopic] = {}
    member = _subscription_of(value.subscription)
    for (topic_id, partition), held in sorted(value.held.items()):
        topic = by_topic.get(topic_id)
        if topic is None:
            topic = by_topic[topic_id] = member.held.add(topic_id=topic_id, topic=value.names[topic_id])
        topic.partitions.append(partition)
        topic.epochs.append(held.epoch)
        if held.withdrawn:
            topic.withdrawn.append(partition)
            topic.withdrawn_in.append(held.withdrawn_in)
    for topic in by_topic.values():
        if not any(topic.withdrawn_in):
            del topic.withdrawn_in[:]
    member.away = value.away
    return member


def _subscription_of(subscription: Subscription) -> fmt.Member:
    return fmt.Member(
        version=CODEC.version,
        topics=subscription.topics,
        topic_pattern=subscription.topic_pattern,
        assignor=subscription.assignor,
        instance_id=subscription.instance_id,
        rack=subscription.rack,
        client_id=subscription.client_id,
        session_timeout_ms=subscription.session_timeout_ms,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        filter=subscription.filter,
        kafka_host=subscription.kafka_host,
    )


def _member_of(data: bytes) -> MemberValue:
    member = CODEC.value(fmt.Member, data)
    held: dict[PartitionId, Held] = {}
    for topic in member.held:
        if len(topic.partitions) != len(topic.epochs):
            raise DataDamaged(
                f"topic {topic.topic!r}: {len(topic.partitions)} partitions, but {len(topic.epochs)} epochs"
            )
        withdrawn = dict(zip_longest(topic.withdrawn, topic.withdrawn_in[: len(topic.withdrawn)], fillvalue=0))
        held |= {
            PartitionId(topic.topic_id, p): Held(epoch, p in withdrawn, withdrawn.get(p, 0))
            for p, epoch in zip(topic.partitions, topic.epochs, strict=True)
        }
    subscription = Subscription(
        topics=tuple(member.topics),
        topic_pattern=member.topic_pattern,
        assignor=member.assignor,
        instance_id=member.instance_id,
        rack=member.rack,
        client_id=member.client_id,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        filter=member.filter,
        kafka_host=member.kafka_host,
    )
    return MemberValue(subscription, member.away, held, {topic.topic_id: topic.topic for topic in member.held})
