"""A record that a broker is about to append to an internal topic, and a decision that has some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ledgermq.buffers import Buffer

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`value` None: a tombstone."""

    key: bytes
    value: Buffer | None


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """An answer, and the records that have to be durable before it is sent.

    `records`, in order, go into one segment. If there are none, the answer is final only after a fence check.
    `woken`: those whose held calls have to be answered now, such as (group, member id).
    """

    records: list[LogRecord]
    answer: T_co
    woken: tuple[tuple[str, str], ...] = ()
