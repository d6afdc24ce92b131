"""Which record batches of Kafka clients are refused, and with what; bounds of decompression; what readers get."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record import default_records
from crc32c import crc32c

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batches.append_time import with_append_time
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq_broker.kafka.wire.batches import compiled, decoding
from ledgermq_broker.kafka.wire.batches.compression import decompress
from ledgermq_broker.kafka.wire.batches.decoding import decode_records
from ledgermq_broker.kafka.wire.batches.encoding import empty_batch, encode_records
from ledgermq_broker.kafka.wire.batches.head import read_head, with_place
from ledgermq_broker.kafka.wire.batches.refusals import (
    BatchTooLarge,
    CodecNotSupported,
    InvalidTimestamp,
    MagicNotSupported,
    RecordsRefused,
    WrongCrc,
)
from tests.worlds.batches import batch_of as arrow_of
from tests.worlds.kafka_batches import (
    COMPRESS,
    PLAIN,
    Fields,
    Row,
    batch_around,
    batch_of,
    body_of,
    java_snappy,
    read_by_kafka_python,
    snappy,
    split,
    varint,
    with_body,
)

MIB = 1024 * 1024
TEN = [Row(b"k%d" % n, b"v") for n in range(10)]
"""Enough for the quick codec to be asked."""


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        (Fields(magic=1), MagicNotSupported, "has 1"),
        (Fields(crc=1), WrongCrc, "checksum"),
        (Fields(length=20), RecordsRefused, "exactly one batch"),
        (Fields(length=10_000), RecordsRefused, "exactly one batch"),
        (Fields(count=0, last_offset_delta=-1), RecordsRefused, "claims 0 records"),
        (Fields(count=-1, last_offset_delta=-2), RecordsRefused, "claims -1 records"),
        (Fields(last_offset_delta=11), RecordsRefused, "number 11"),
        (Fields(count=9, last_offset_delta=8), RecordsRefused, "bytes are left"),
        (Fields(count=11, last_offset_delta=10), RecordsRefused, "record 10 .* ends inside"),
        (Fields(count=2**31 - 1, last_offset_delta=2**31 - 2), RecordsRefused, "cannot hold"),
        (Fields(attributes=0x20), RecordsRefused, "control"),
        (Fields(attributes=0x08), InvalidTimestamp, "LogAppendTime"),
        (Fields(attributes=5), CodecNotSupported, "type 5"),
        (Fields(producer=(7, -1, 0)), RecordsRefused, "epoch -1"),
        (Fields(producer=(7, 0, -1)), RecordsRefused, "sequence -1"),
        (Fields(deltas=[*range(9), 8]), RecordsRefused, "record 9 .* offset delta is 8"),
        (Fields(deltas=[1, *range(1, 10)]), RecordsRefused, "record 0 .* offset delta is 1"),
        (Fields(base_timestamp_ms=-(2**62)), None, ""),
    ],
)
def test_batches_that_break_a_rule(fields: Fields, error: type[LedgerMQError] | None, says: str) -> None:
    data = batch_of(TEN, fields)
    if error is None:
        assert decode_records(data).records.num_rows == 10
        return
    with pytest.raises(error, match=says) as refused:
        decode_records(data)
    assert type(refused.value) is error


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize(
    ("row", "fields", "error", "says"),
    [
        (Row(None), Fields(null=-2), RecordsRefused, "claims -2 bytes"),
        (Row(None), Fields(null=-3, width=2), RecordsRefused, "claims -3 bytes"),
        (Row(b"k"), Fields(width=6), RecordsRefused, "more than 5 bytes"),
        (Row(headers=[(b"\xff", b"v")]), PLAIN, RecordsRefused, "not UTF-8"),
        (Row(headers=[("ledgermq.tag", b"\xff")]), PLAIN, RecordsRefused, "ledgermq.tag of record 0 is not UTF-8"),
        (Row(timestamp_ms=2**60), Fields(base_timestamp_ms=0), InvalidTimestamp, "record 0"),
        (Row(timestamp_ms=-(2**60)), Fields(base_timestamp_ms=0), InvalidTimestamp, "years 1 to 9999"),
    ],
)
def test_records_that_break_a_rule(row: Row, fields: Fields, error: type[LedgerMQError], says: str, count: int) -> None:
    with pytest.raises(error, match=says) as refused:
        decode_records(batch_of([row] * count, fields))
    assert type(refused.value) is error


def test_only_a_wrong_checksum_is_retried_by_clients() -> None:
    """Kafka's CORRUPT_MESSAGE (2) is; a batch that is wrong as such would be sent for minutes."""
    codes = {kind: kind.kafka_code for kind in (RecordsRefused, WrongCrc, MagicNotSupported, CodecNotSupported)}
    assert codes == {RecordsRefused: 87, WrongCrc: 2, MagicNotSupported: 43, CodecNotSupported: 76}
    assert (InvalidTimestamp.kafka_code, BatchTooLarge.kafka_code) == (32, 10)


@pytest.mark.parametrize("data", [b"", b"\0" * 10, b"\0" * 16 + b"\x02", batch_of(TEN)[:60]])
def test_a_batch_that_is_cut_off(data: bytes) -> None:
    with pytest.raises(RecordsRefused, match="at least 61 bytes"):
        read_head(data)


def test_old_formats_are_named_before_anything_else() -> None:
    """Clients of Kafka 0.10 get an answer that says so, however short their batches are."""
    with pytest.raises(MagicNotSupported):
        read_head(b"\0" * 30)


def test_several_batches_are_refused() -> None:
    with pytest.raises(RecordsRefused, match="exactly one batch"):
        decode_records(batch_of(TEN) + batch_of(TEN))


def test_attributes_of_a_record_have_no_meaning() -> None:
    rows = [Row(b"k", b"v", attributes=attributes) for attributes in (0, 1, 0x80, 0xFF, 0x7F)]
    assert decode_records(batch_of(rows)).records.column("key").to_pylist() == [b"k"] * 5


def test_a_header_count_reserves_nothing() -> None:
    content = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(2**31 - 1)
    body = varint(len(content)) + content
    with pytest.raises(RecordsRefused, match="claims 2147483647 headers"):
        decode_records(batch_around(body, 1))
    with pytest.raises(RecordsRefused):
        decode_records(with_body(batch_of(TEN), body * 10))


def test_the_same_bytes_give_the_same_arrow_bytes() -> None:
    """The checksum of a stored batch tells whether a repeated batch is the one that is stored."""
    data = batch_of([Row(b"k", b"v", [("a", None)])] * 700)
    made = [encode_batch(decode_records(data).records) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize("name", [name for name in COMPRESS if name != "none"])
def test_no_codec_goes_beyond_the_bound(name: str) -> None:
    bomb = COMPRESS[name](bytes(40 * MIB))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.raises(BatchTooLarge, match="more than 4194304 bytes"):
            decompress(bomb, PLAIN_CODES[name], 4 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * MIB
    assert pa.total_allocated_bytes() == before


PLAIN_CODES = {"gzip": 1, "snappy": 2, "java-snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("name", PLAIN_CODES)
@pytest.mark.parametrize("size", [0, 1, 10, 64 * 1024 - 1, 3 * MIB])
def test_each_codec_gives_back_what_was_compressed(name: str, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert decompress(COMPRESS[name](data), PLAIN_CODES[name], size) == data


@pytest.mark.parametrize("name", PLAIN_CODES)
def test_what_is_cut_off_or_followed_by_more_is_refused(name: str) -> None:
    good = COMPRESS[name](bytes(range(256)) * 300)
    for bad in (good[:-1], good[: len(good) // 2], good + b"\x07\x07\x07\x07\x07"):
        with pytest.raises(RecordsRefused, match="cannot be decompressed"):
            decompress(bad, PLAIN_CODES[name], MIB)


@pytest.mark.parametrize(
    "block",
    [b"", b"\xff" * 6, varint(0)[:0] + b"\x80", b"\xff\xff\xff\x7f" + b"\0" * 10, b"\0\0"],
    ids=["empty", "size too long", "size cut off", "claims too much", "more than nothing"],
)
def test_raw_snappy_of_a_wrong_size(block: bytes) -> None:
    with pytest.raises((RecordsRefused, BatchTooLarge)):
        decompress(block, 2, 2**31)


@pytest.mark.parametrize(
    "rest", [b"\0", struct.pack(">i", -1), struct.pack(">i", 0), struct.pack(">i", 100) + b"x", struct.pack(">i", 1)]
)
def test_frames_of_java_snappy_with_a_wrong_length(rest: bytes) -> None:
    with pytest.raises(RecordsRefused):
        decompress(java_snappy(b"abc" * 100) + rest, 2, MIB)
    with pytest.raises(RecordsRefused, match="cut off"):
        decompress(b"\x82SNAPPY\0\0\0", 2, MIB)


def test_the_bound_counts_all_blocks_of_java_snappy() -> None:
    with pytest.raises(BatchTooLarge, match="more than 100000 bytes"):
        decompress(java_snappy(bytes(100_001)), 2, 100_000)
    assert decompress(java_snappy(bytes(100_000)), 2, 100_000) == bytes(100_000)
    assert snappy(b"") == b"\0"


def test_a_batch_of_too_many_records_is_refused_before_it_takes_memory() -> None:
    """Each record takes 28 bytes in Arrow, seven in a Kafka batch, and less than one when it is compressed."""
    rows = body_of([Row(None, None)])
    data = batch_around(rows * 100_000, 100_000, Fields(codec="zstd"))
    with pytest.raises(BatchTooLarge, match="too many"):
        decode_records(data, decoded_bytes_max=2 * MIB)


def test_long_batches_with_long_numbers_are_read() -> None:
    """No known client writes numbers longer than they need be, but Kafka takes them."""
    count = 601
    body = b"".join(body_of([Row(None, None)], Fields(width=2, deltas=[number])) for number in range(count))
    assert decode_records(batch_around(body, count)).records.num_rows == count


def test_what_is_wrong_is_not_named_in_the_largest_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strict reader would need seconds for them."""
    body = b"".join(body_of([Row(None, None)], Fields(deltas=[min(number, 599)])) for number in range(601))
    with pytest.raises(RecordsRefused, match=r"record 600 .* offset delta is 599"):
        decode_records(batch_around(body, 601))
    monkeypatch.setattr(decoding, "_NAMED_RECORDS_MAX", 600)
    with pytest.raises(RecordsRefused, match="are damaged"):
        decode_records(batch_around(body, 601))


@pytest.mark.parametrize("count", [499, 500, 501, 1700])
def test_more_records_than_are_read_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_AT_ONCE", 500)
    monkeypatch.setattr(decoding, "_NAMED_RECORDS_MAX", 400)  # so that the strict reader helps out for none
    body = b"".join(body_of([Row(b"%d" % n, None)], Fields(deltas=[n])) for n in range(count))
    got = decode_records(batch_around(body, count, first_ms=Row().timestamp_ms)).records
    assert got.column("key").to_pylist() == [b"%d" % n for n in range(count)]


def listed(made: Sequence[bytes]) -> list[tuple[int, int]]:
    return [(head.base_offset, head.base_offset + head.last_offset_delta + 1) for head in map(read_head, made)]


def test_small_runs_become_one_batch_with_gaps() -> None:
    runs = [(number * 10, arrow_of([{"value": b"v"}] * 3)) for number in range(100)]
    [made] = encode_records(runs)
    assert [read.offset for read in read_by_kafka_python(made)] == [10 * n + m for n in range(100) for m in range(3)]
    assert read_last(made) == 992


def read_last(batch: bytes) -> int:
    base, last = struct.unpack_from(">q", batch)[0], struct.unpack_from(">i", batch, 23)[0]
    return int(base + last)


def test_a_batch_reaches_over_the_gap_behind_it() -> None:
    """Else a client that has read it asks for offsets that hold nothing, again and again."""
    runs = [(0, arrow_of([{"value": b"v"}])), (2**40, arrow_of([{"value": b"w"}]))]
    first, second = encode_records(runs, covered_to=2**40 + 50)
    assert read_last(first) == 2**31 - 1  # as far as a batch can reach
    assert read_last(second) == 2**40 + 49
    assert read_last(next(iter(encode_records(runs[:1], covered_to=0)))) == 0


def test_an_empty_batch_leads_over_a_gap() -> None:
    data = empty_batch(100, 150)
    assert read_last(data) == 149
    assert read_by_kafka_python(data) == []
    assert struct.unpack_from(">I", data, 17)[0] == crc32c(data[21:])


def test_a_large_run_is_cut_and_a_large_record_is_not() -> None:
    rows = arrow_of([{"value": bytes(300_000)}] * 5 + [{"value": bytes(3 * MIB)}] + [{"value": b"v"}] * 1000)
    made = list(encode_records([(7, rows)]))
    assert [head.record_count for head in map(read_head, made)] == [3, 2, 1, 1000]
    assert listed(made) == [(7, 10), (10, 12), (12, 13), (13, 1013)]


def test_timestamps_of_the_broker_are_marked() -> None:
    stored = decode_batch(with_append_time(encode_batch(arrow_of([{"value": b"v", "timestamp": 5}] * 3)), 7_000_900))
    later = arrow_of([{"value": b"w", "timestamp": 9_000_000}])
    made = list(encode_records([(0, stored), (3, stored), (6, later)]))
    assert [read_head(batch).record_count for batch in made] == [6, 1]
    reads = read_by_kafka_python(b"".join(made))
    assert [(read.timestamp_ms, read.timestamp_type) for read in reads] == [(7000, 1)] * 6 + [(9000, 0)]
    other = decode_batch(with_append_time(encode_batch(stored), 8_000_000))
    assert len(list(encode_records([(0, stored), (3, other)]))) == 2


def test_timestamps_before_1970_and_none() -> None:
    times: list[Any] = [None, -1_500, 0, 1_999, 253_402_300_799_999_999, -62_135_596_800_000_000]
    [made] = encode_records([(0, arrow_of([{"timestamp": time} for time in times]))])
    got = [read.timestamp_ms for read in read_by_kafka_python(made)]
    assert got == [None, -2, 0, 1, 253_402_300_799_999, -62_135_596_800_000]
    assert read_head(made).max_timestamp_ms == 253_402_300_799_999


def test_names_and_pairs_that_are_null_in_old_roots() -> None:
    """From before a rule: clients need a name."""
    headers = pa.array([[{"key": None, "value": b"x"}, None]], SCHEMA.field("headers").type)
    row = arrow_of([{"value": b"v"}]).set_column(2, SCHEMA.field("headers"), headers)
    for count in (1, 400):
        [made] = encode_records([(0, pa.concat_batches([row] * count))])
        assert [read.headers for read in read_by_kafka_python(made)] == [[("", b"x"), ("", None)]] * count


def test_a_producers_bytes_at_their_place() -> None:
    """The place lies outside of the checksum."""
    data = batch_of(TEN, Fields(codec="lz4"))
    placed = with_place(data, 2**40)
    head = read_head(placed)
    assert (head.base_offset, head.crc, len(placed)) == (2**40, read_head(data).crc, len(data))
    assert placed[12:16] == bytes(4)
    assert placed[16:] == data[16:]
    assert decode_records(placed).records == decode_records(data).records


def test_the_slow_codec_of_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.check_compiled()
    monkeypatch.setattr(compiled, "DefaultRecordBatch", default_records._DefaultRecordBatchPy)
    with pytest.raises(RuntimeError, match="compiled codec"):
        compiled.check_compiled()


def test_batches_are_split_by_their_length() -> None:
    data = b"".join(encode_records([(0, arrow_of([{"value": bytes(600_000)}] * 3))]))
    assert len(split(data)) == 3
