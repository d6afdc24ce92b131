"""Requests, answers, refusals and bounds of classic groups.

GroupError, UnknownMember                      (ledgermq.errors)
├── UnknownMember            25 UNKNOWN_MEMBER_ID            join again under a new id
├── IllegalGeneration        22 ILLEGAL_GENERATION           the group has gone on: join again
├── RebalanceInProgress      27 REBALANCE_IN_PROGRESS        join again, under the same id
├── InconsistentProtocol     23 INCONSISTENT_GROUP_PROTOCOL  no protocol is supported by all members
├── InvalidSessionTimeout    26 INVALID_SESSION_TIMEOUT
├── MemberIdRequired         79 MEMBER_ID_REQUIRED           join again with the id that it names
├── GroupFull                81 GROUP_MAX_SIZE_REACHED
└── FencedInstance           82 FENCED_INSTANCE_ID           another process uses the instance id now
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from ledgermq.errors import GroupError
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

Protocols = tuple[tuple[str, bytes], ...]
"""Names of what a member supports, the preferred one first, each with its metadata, which is opaque here."""


class State(Enum):
    """Kafka's states, with the names that its tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class IllegalGeneration(GroupError):
    kafka_code: ClassVar[int] = 22


class RebalanceInProgress(GroupError):
    kafka_code: ClassVar[int] = 27


class InconsistentProtocol(GroupError):
    kafka_code: ClassVar[int] = 23


class InvalidSessionTimeout(GroupError):
    kafka_code: ClassVar[int] = 26


class GroupFull(GroupError):
    kafka_code: ClassVar[int] = 81


class FencedInstance(GroupError):
    kafka_code: ClassVar[int] = 82


class MemberIdRequired(GroupError):
    kafka_code: ClassVar[int] = 79

    def __init__(self, member_id: str) -> None:
        super().__init__("join again with the member id of this answer")
        self.member_id = member_id


@dataclass(frozen=True)
class ClassicLimits:
    """Names and defaults as in Kafka's brokers, where it has them."""

    members_max: int = 1_000
    member_bytes_max: int = 1024 * 1024
    """Metadata of one member, all its protocols together, with all names that it states."""
    group_bytes_max: int = 8 * 1024 * 1024
    """Metadata and names, or assignments, of all members of a group together."""
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    rebalance_timeout_ms_max: int = 86_400_000
    initial_delay_ms: int = 3_000
    """How long the first members of an empty group wait for others, after each that joins."""


def stated_bytes(protocols: Protocols, *names: str) -> int:
    """Return how much a member has its group keep: names count as its metadata do."""
    stated = sum(len(name.encode()) + len(data) for name, data in protocols)
    return stated + sum(len(name.encode()) for name in names)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`member_id`, `instance_id`: empty if there is none. `id_required`: the client can join again with an id, as from
    version 4 of JoinGroup on. `principal`: a hash of the caller's name, to which a new group counts.
    """

    group: str
    member_id: str
    protocol_type: str
    protocols: Protocols
    instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    id_required: bool = False
    principal: int = NO_PRINCIPAL

    @property
    def size_bytes(self) -> int:
        return stated_bytes(self.protocols, self.protocol_type, self.instance_id, self.client_id, self.client_host)


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`members`: (member id, instance id, metadata) of all, for the leader. `skip_assignment`: the leader gets what the
    group has already; a client that does not know the field (below version 9) has to be shown another leader.
    """

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[tuple[str, str, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    state: State
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


Answer = JoinAnswer | SyncAnswer | GroupError
"""Of a held call."""
