"""A record that a broker is about to append to an internal topic."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.buffers import Buffer


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`value` None: a tombstone."""

    key: bytes
    value: Buffer | None
