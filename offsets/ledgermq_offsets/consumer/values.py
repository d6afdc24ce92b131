"""Refusals of members that speak the Kafka protocol.

GroupError                                     (ledgermq.errors)
├── UnknownMember         25 UNKNOWN_MEMBER_ID           join again
├── InconsistentProtocol  23 INCONSISTENT_GROUP_PROTOCOL  the group has members of another kind
├── GroupFull             81 GROUP_MAX_SIZE_REACHED
├── FencedInstance        82 FENCED_INSTANCE_ID          another process uses the instance id now
├── FencedEpoch          110 FENCED_MEMBER_EPOCH         drop all partitions, and join again
├── UnreleasedInstance   111 UNRELEASED_INSTANCE_ID      the process that has the instance id has not left
├── UnsupportedAssignor  112 UNSUPPORTED_ASSIGNOR
├── StaleEpoch           113 STALE_MEMBER_EPOCH          send a heartbeat, then commit again
└── InvalidPattern       128 INVALID_REGULAR_EXPRESSION
"""

from __future__ import annotations

from typing import ClassVar

from ledgermq.errors import GroupError, StaleAssignment


class FencedEpoch(GroupError):
    kafka_code: ClassVar[int] = 110


class UnreleasedInstance(GroupError):
    kafka_code: ClassVar[int] = 111


class UnsupportedAssignor(GroupError):
    kafka_code: ClassVar[int] = 112


class StaleEpoch(StaleAssignment):
    kafka_code: ClassVar[int] = 113


class InvalidPattern(GroupError):
    kafka_code: ClassVar[int] = 128
