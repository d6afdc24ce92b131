"""A record that a broker is about to append to an internal topic, and a decision that has some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ledgermq.buffers import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`value` None: a tombstone."""

    key: bytes
    value: Buffer | None


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """An answer, and the records that have to be durable before it is sent.

    `records` go into one segment. If there are none, the answer is final only after a fence check.
    """

    records: list[LogRecord]
    answer: T
