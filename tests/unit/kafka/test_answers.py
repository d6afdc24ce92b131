"""What a broker answers, as a Kafka client gets it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from ledgermq.errors import DuplicateMessage, LedgerMQError, NotOwner, OffsetOutOfRange, StoreFull
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import decode_batch, encode_batch
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.kafka.wire import answers
from ledgermq_broker.kafka.wire.answers import check_keys, fetched, produce_batch, produced, refused
from ledgermq_broker.kafka.wire.batches.decoding import decode_records
from ledgermq_broker.kafka.wire.batches.head import read_head
from ledgermq_broker.kafka.wire.batches.refusals import BatchTooLarge, RecordsRefused
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated.fetch_response import PartitionData
from tests.worlds.batches import batch_of as arrow_of
from tests.worlds.kafka_batches import Fields, Row, batch_of, read_by_kafka_python, split

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("name", "stored"), [("none", "none"), ("gzip", "lz4"), ("snappy", "lz4"), ("lz4", "lz4"), ("zstd", "zstd")]
)
def test_a_batch_is_stored_compressed_as_it_came(name: str, stored: str) -> None:
    rows = [Row(b"k", b"value " * 100, timestamp_ms=5000 - n) for n in range(50)]
    made = decode_records(batch_of(rows, Fields(codec=name)))
    session = pb.ProducerSession(id=bytes(16), epoch=1, sequence=2, opened_slot=3)
    header, data = produce_batch("t", 7, 3, made, session)
    assert walk_batch(data, decoded_bytes_max=MIB).codec == stored
    assert decode_batch(data) == made.records
    wanted = pb.ProduceBatch(
        topic="t",
        topic_id=7,
        partition=3,
        length=len(data),
        crc=crc32c(data),
        record_count=50,
        timestamp_min_us=4_951_000,
        timestamp_max_us=5_000_000,
        schema=1,
        producer=session,
    )
    assert header == wanted
    assert produce_batch("t", 7, 3, decode_records(batch_of(rows, Fields(codec=name))), session) == (header, data)


def test_records_without_time_have_none() -> None:
    header, _ = produce_batch("t", 0, 0, decode_records(batch_of([Row(timestamp_ms=-1)])), None)
    assert (header.timestamp_min_us, header.timestamp_max_us, header.HasField("producer")) == (0, 0, False)


def test_a_batch_that_no_frame_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FRAME_PAYLOAD_BYTES_MAX", 1000)
    with pytest.raises(BatchTooLarge, match="send smaller batches"):
        produce_batch("t", 0, 0, decode_records(batch_of([Row(b"k", bytes(1000))])), None)


def test_a_stored_batch_has_its_offset() -> None:
    answer = produced(pb.ProduceResult(base_offset=40, topic_id=1), 3, 5)
    assert (answer.index, answer.error_code, answer.base_offset, answer.log_append_time_ms) == (3, 0, 40, -1)
    assert produced(pb.ProduceResult(base_offset=40, append_us=1_234_999), 3, 5).log_append_time_ms == 1234


@pytest.mark.parametrize(
    ("error", "code"), [(NotOwner("other"), Code.NOT_LEADER_OR_FOLLOWER), (StoreFull("full"), Code.KAFKA_STORAGE_ERROR)]
)
def test_a_refused_batch_has_no_offset(error: LedgerMQError, code: Code) -> None:
    answer = produced(pb.ProduceResult(error=error_to_proto(error)), 3, 5)
    assert (answer.error_code, answer.base_offset, answer.error_message) == (code, -1, error.message)
    assert answer.record_errors == []


def duplicates(*rows: pb.DuplicateRecord) -> pb.ProduceResult:
    return pb.ProduceResult(error=error_to_proto(DuplicateMessage("stored before")), duplicates=rows)


def test_a_batch_of_which_all_is_stored_succeeds_with_the_first_ones_offset() -> None:
    rows = pb.DuplicateRecord(row=0, offset=70), pb.DuplicateRecord(row=1, same_as=0)
    answer = produced(duplicates(*rows), 3, 2)
    assert (answer.error_code, answer.base_offset) == (0, 70)


def test_records_that_are_stored_before_are_named() -> None:
    rows = pb.DuplicateRecord(row=1, offset=70), pb.DuplicateRecord(row=4, same_as=2)
    answer = produced(duplicates(*rows), 3, 5)
    assert (answer.error_code, answer.base_offset) == (Code.INVALID_RECORD, -1)
    assert [error.batch_index for error in answer.record_errors] == [1, 4]
    assert "offset 70" in str(answer.record_errors[0].batch_index_error_message)
    assert "record 2" in str(answer.record_errors[1].batch_index_error_message)


def test_records_without_a_key_are_named() -> None:
    rows = [Row(None if n in (2, 5) else b"k") for n in range(8)]
    with pytest.raises(RecordsRefused) as found:
        check_keys(decode_records(batch_of(rows)).records)
    answer = refused(found.value, 3)
    assert answer.error_code == Code.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [2, 5]
    check_keys(decode_records(batch_of([Row(b"k")])).records)


def test_memory_is_reserved_for_what_decoding_takes() -> None:
    assert answers.memory_bytes(MIB) == 5 * MIB


def part_of(*runs: tuple[int, pa.RecordBatch], **fields: Any) -> tuple[pb.FetchedPartition, list[bytes]]:
    payload = [encode_batch(records) for _, records in runs]
    batches = [
        pb.FetchedBatch(base_offset=base, record_count=len(records), length=len(data), crc=crc32c(data))
        for (base, records), data in zip(runs, payload, strict=True)
    ]
    fields = {"high_watermark": 5000, "log_start": 2} | fields
    return pb.FetchedPartition(topic="t", partition=3, batches=batches, **fields), payload


def rows_of(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    return arrow_of([{"key": b"%d" % (first + n), "value": bytes(size)} for n in range(count)])


def offsets(answer: PartitionData) -> list[int]:
    data = b"".join(answer.records or ())  # type: ignore[arg-type]
    reads = read_by_kafka_python(data)
    assert [read.key for read in reads] == [b"%d" % read.offset for read in reads]
    return [read.offset for read in reads]


def test_a_client_gets_records_from_the_offset_it_asks_for() -> None:
    part, payload = part_of((10, rows_of(10, 10)), (20, rows_of(20, 5)), (30, rows_of(30, 2)))
    answer = fetched(part, payload, fetch_offset=22, bytes_max=MIB, first=True)
    assert offsets(answer) == [22, 23, 24, 30, 31]
    assert (answer.partition_index, answer.error_code) == (3, 0)
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (5000, 5000, 2)
    assert offsets(fetched(part, payload, fetch_offset=5, bytes_max=MIB, first=True))[0] == 10


def test_a_read_from_the_middle_of_a_large_run_goes_on() -> None:
    """Whole runs would begin with the same mebibyte each time, and a client with a small bound would stay there."""
    part, payload = part_of((0, rows_of(0, 40, 100_000)))
    at, answers_of = 0, 0  # two records of 100 kB fit at a time
    while at < 40:
        found = offsets(fetched(part, payload, fetch_offset=at, bytes_max=250_000, first=True))
        assert found[0] == at
        at, answers_of = found[-1] + 1, answers_of + 1
    assert answers_of == 20


def test_a_small_bound_gets_small_batches() -> None:
    """Else only the first partition of an answer would ever have records."""
    part, payload = part_of((0, rows_of(0, 5000, 100)))
    data = b"".join(fetched(part, payload, fetch_offset=0, bytes_max=50_000, first=False).records or ())  # type: ignore[arg-type]
    assert 25_000 < len(data) <= 50_000
    tiny = fetched(part, payload, fetch_offset=0, bytes_max=1, first=True).records or ()
    assert 8_000 < len(b"".join(tiny)) <= 16 * 1024  # type: ignore[arg-type]


def test_the_bound_holds_but_for_the_first_batch_of_an_answer() -> None:
    part, payload = part_of((0, rows_of(0, 40, 100_000)))
    data = b"".join(fetched(part, payload, fetch_offset=0, bytes_max=2 * MIB + MIB // 2, first=True).records or ())  # type: ignore[arg-type]
    assert len(split(data)) == 2
    assert len(data) <= 2 * MIB
    assert fetched(part, payload, fetch_offset=0, bytes_max=1000, first=False).records == []
    large, its_payload = part_of((0, rows_of(0, 1, 3 * MIB)))
    assert offsets(fetched(large, its_payload, fetch_offset=0, bytes_max=1000, first=True)) == [0]


def test_a_client_goes_on_behind_a_gap() -> None:
    part, payload = part_of((10, rows_of(10, 2)), next_offset=900)
    answer = fetched(part, payload, fetch_offset=10, bytes_max=MIB, first=True)
    [batch] = split(b"".join(answer.records or ()))  # type: ignore[arg-type]
    assert offsets(answer) == [10, 11]
    assert int.from_bytes(batch[23:27], "big") == 899 - 10
    nothing, _ = part_of(next_offset=900)
    [batch] = fetched(nothing, [], fetch_offset=12, bytes_max=MIB, first=True).records or ()  # type: ignore[misc]
    assert int.from_bytes(bytes(batch)[:8], "big") + int.from_bytes(bytes(batch)[23:27], "big") == 899  # type: ignore[arg-type]
    end, _ = part_of()
    assert fetched(end, [], fetch_offset=5000, bytes_max=MIB, first=True).records == []


def test_a_gap_is_not_crossed_before_what_lies_before_it_is_sent() -> None:
    part, payload = part_of((0, rows_of(0, 40, 100_000)), next_offset=900)
    answer = fetched(part, payload, fetch_offset=0, bytes_max=MIB, first=True)
    [batch] = split(b"".join(answer.records or ()))  # type: ignore[arg-type]
    assert read_head(batch).last_offset_delta + 1 == len(offsets(answer)) < 40


def test_a_partition_that_cannot_be_read_says_so() -> None:
    part, _ = part_of(error=error_to_proto(OffsetOutOfRange("below")))
    answer = fetched(part, [], fetch_offset=0, bytes_max=MIB, first=True)
    assert (answer.error_code, answer.high_watermark, answer.records) == (Code.OFFSET_OUT_OF_RANGE, -1, b"")


def test_damage_is_named_once_everything_before_it_is_read() -> None:
    big = 600_000
    part, payload = part_of((0, rows_of(0, 2, big)), (2, rows_of(2, 2, big)), (4, rows_of(4, 2)))
    payload[1] = payload[1][:-1] + b"x"
    assert offsets(fetched(part, payload, fetch_offset=0, bytes_max=9 * MIB, first=True)) == [0]
    answer = fetched(part, payload, fetch_offset=2, bytes_max=9 * MIB, first=True)
    assert answer.error_code == Code.KAFKA_STORAGE_ERROR
    part.batches[1].crc, part.batches[1].record_count = crc32c(payload[1]), 3
    assert fetched(part, payload, fetch_offset=2, bytes_max=9 * MIB, first=True).error_code == Code.KAFKA_STORAGE_ERROR
