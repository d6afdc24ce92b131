"""Errors of record batches that a Kafka client sends.

    InvalidRecord, CorruptFrame, MessageTooLarge     (ledgermq.errors)
    ├── RecordsRefused      87 INVALID_RECORD                 the batch breaks a rule of the format: permanent
    ├── WrongCrc             2 CORRUPT_MESSAGE                the bytes changed on the way: clients send again
    ├── MagicNotSupported   43 UNSUPPORTED_FOR_MESSAGE_FORMAT formats from before Kafka 0.11
    ├── CodecNotSupported   76 UNSUPPORTED_COMPRESSION_TYPE
    ├── InvalidTimestamp    32 INVALID_TIMESTAMP
    └── BatchTooLarge       10 MESSAGE_TOO_LARGE              more than a batch may decode to

Only a wrong checksum gets a code that clients retry. All else would fail again.
"""

from __future__ import annotations

from typing import ClassVar

from ledgermq.errors import CorruptFrame, InvalidRecord, MessageTooLarge


class RecordsRefused(InvalidRecord):
    """`rows`: numbers of the records in the batch that are wrong; empty: the whole batch is."""

    kafka_code: ClassVar[int] = 87

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class WrongCrc(CorruptFrame):
    kafka_code: ClassVar[int] = 2


class MagicNotSupported(CorruptFrame):
    kafka_code: ClassVar[int] = 43


class CodecNotSupported(InvalidRecord):
    kafka_code: ClassVar[int] = 76


class InvalidTimestamp(InvalidRecord):
    kafka_code: ClassVar[int] = 32


class BatchTooLarge(MessageTooLarge):
    kafka_code: ClassVar[int] = 10
