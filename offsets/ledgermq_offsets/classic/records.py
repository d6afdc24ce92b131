"""The record of a classic group, in the partition of `__consumer_offsets` that its name belongs to.

    key                value
    classic/<group>    Classic    its newest completed generation, and the newest one that was given out

A group whose generation is below `given` was rebalancing when the record was written: its members have no
assignments, and have to join again. Coordinators of earlier releases refuse a partition with such a key.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.log.log_record import LogRecord, RecordCodec
from ledgermq_offsets.classic.group import ClassicGroup, ClassicMember
from ledgermq_offsets.classic.values import State
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt
from ledgermq_offsets.state.groups import OffsetsState

PREFIX = b"classic/"
_CODEC: RecordCodec[ClassicGroup] = RecordCodec(keys.OFFSETS_TOPIC)


def encode(group: ClassicGroup) -> LogRecord:
    """Return the record of a group as it is now."""
    value = fmt.Classic(
        version=_CODEC.version,
        generation=group.durable,
        given=group.durable if group.is_whole else group.given,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader if group.leader in group.members else "",
        empty_since_ms=0 if group.members else group.empty_since_ms,
        members=[
            fmt.ClassicMember(
                id=member.id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=[fmt.ClassicProtocol(name=name, metadata=data) for name, data in member.protocols],
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
    return _CODEC.record(f"classic/{group.name}", value)


def tombstone(name: str) -> LogRecord:
    return _CODEC.record(f"classic/{name}", None)


def decode(key: bytes, value: bytes | None) -> tuple[str, ClassicGroup | None]:
    """Return a group's name, and the group as its next coordinator begins with it; None: it was deleted.

    Raises DataDamaged, FormatNotSupported.
    """
    name = key.removeprefix(PREFIX).decode(errors="replace")
    if not key.startswith(PREFIX):
        raise DataDamaged(f"key {key[:100]!r} is not one of a classic group")
    if value is None:
        return name, None
    return name, _CODEC.decode(key, value, lambda _, data: None if data is None else _group(name, data))


def stored_offsets(records: Iterable[tuple[bytes, bytes | None]]) -> OffsetsState:
    """Return what the groups of a partition of `__consumer_offsets` have committed and staged, for programs that read
    the store. `records`: keys and values of all of its records, in order.

    Raises DataDamaged, FormatNotSupported.
    """
    state = OffsetsState()
    for key, value in records:
        if key.startswith(PREFIX):
            decode(key, value)  # it commits and stages nothing, but it may be damaged
        else:
            state.apply(key, value)
    return state


def _group(name: str, data: bytes) -> ClassicGroup:
    value = _CODEC.value(fmt.Classic, data)
    whole = value.generation >= value.given
    if whole and value.members and value.leader not in {member.id for member in value.members}:
        raise DataDamaged("the leader is not one of the members")
    members = {
        member.id: ClassicMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            tuple((each.name, each.metadata) for each in member.protocols),
            heard_s=0.0,
            assignment=member.assignment,
            synced=True,
        )
        for member in value.members
    }
    return ClassicGroup(
        name,
        State.EMPTY if not members else State.STABLE if whole else State.PREPARING,
        value.protocol_type,
        value.protocol,
        value.leader,
        generation=max(value.generation, value.given),
        durable=value.generation,
        given=max(value.generation, value.given) + 1,  # one more may have been given out, which is in no record
        empty_since_ms=value.empty_since_ms,
        members=members,
    )
