"""Names of transactions and of what they stage: shared by coordinator, participant and broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

from ledgermq.protocol.limits import DELAYED_BRANCH

T = TypeVar("T")


class Kind(IntEnum):
    """The numbers are those of the wire and of stored records."""

    ORDINARY = 0
    TWO_PHASE = 1
    HALF_MESSAGE = 2


class State(IntEnum):
    """The numbers are those of the wire and of stored records."""

    UNDECIDED = 0
    COMMITTED = 1
    ABORTED = 2
    PREPARED = 3
    COMMITTED_BY_OPERATOR = 4
    ABORTED_BY_OPERATOR = 5
    UNRESOLVED = 6

    @property
    def is_commit(self) -> bool:
        return self in (State.COMMITTED, State.COMMITTED_BY_OPERATOR)

    @property
    def is_final(self) -> bool:
        return self not in (State.UNDECIDED, State.PREPARED)

    @property
    def is_abort(self) -> bool:
        return self in (State.ABORTED, State.ABORTED_BY_OPERATOR)

    @property
    def is_of_operator(self) -> bool:
        return self in (State.COMMITTED_BY_OPERATOR, State.ABORTED_BY_OPERATOR)


class Transaction(NamedTuple):
    transactional_id: str
    coordinator: int
    """The partition of `__transactions` whose owner decides about it."""
    producer_id: bytes
    epoch: int
    number: int

    @property
    def pair(self) -> tuple[int, int]:
        """Return the order of a producer's transactions: that of pairs (epoch, number)."""
        return self.epoch, self.number


class Stream(NamedTuple):
    """Names the batches of one branch in one partition: they are numbered together, from 0."""

    branch: bytes
    topic_id: int
    partition: int

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Return the place of its batches in a commit."""
        return self.topic_id, self.partition, self.branch

    @property
    def is_delayed(self) -> bool:
        """Return whether the records wait for their due times after the commit (W17)."""
        return self.branch.endswith(DELAYED_BRANCH)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a transaction in one bundle, as a decision counts it.

    `counts`: number of batches of each stream. `groups`: groups whose staged offsets belong to the
    transaction.
    """

    bundle: int
    counts: Mapping[Stream, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """Where one staged batch is. `offset`: of its first record, in `__staged`. `length`: bytes."""

    stream: Stream
    sequence: int
    offset: int
    record_count: int
    length: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int
