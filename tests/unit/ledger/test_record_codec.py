"""The codec that the records of all internal topics share: which record is damaged, and which is of a later version."""

from __future__ import annotations

import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger.log.log_record import LogRecord, RecordCodec
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt

CODEC: RecordCodec[int] = RecordCodec("__some", version=2)


def epoch_of(key: bytes, value: bytes | None) -> int | None:
    if key != b"floor":
        return None
    return 0 if value is None else CODEC.value(fmt.Floor, value).epoch


def test_a_record_is_read_as_it_was_written() -> None:
    record = CODEC.record("floor", fmt.Floor(version=2, epoch=7))
    assert CODEC.decode(record.key, bytes(record.value or b""), epoch_of) == 7
    assert CODEC.record("floor", None) == LogRecord(b"floor", None)
    assert CODEC.decode(b"floor", None, epoch_of) == 0, "an entry that is false is one, too"


@pytest.mark.parametrize(
    ("key", "value", "error", "text"),
    [
        (b"floor", fmt.Floor(epoch=7), DataDamaged, "b'floor' of __some: the value has no format version"),
        (b"floor", fmt.Floor(version=3), FormatNotSupported, "of __some: format version 3, this program reads 2"),
        (b"floor", fmt.Floor(version=1), FormatNotSupported, "of __some: format version 1, this program reads 2"),
        (b"roof", fmt.Floor(version=2), FormatNotSupported, "b'roof' of __some: a later version wrote it"),
    ],
)
def test_what_cannot_be_read_is_named(key: bytes, value: fmt.Floor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        CODEC.decode(key, value.SerializeToString(), epoch_of)


def test_bytes_that_are_no_message_are_damage() -> None:
    with pytest.raises(DataDamaged, match=r"record b'floor' of __some: "):
        CODEC.decode(b"floor", b"\xff", epoch_of)
