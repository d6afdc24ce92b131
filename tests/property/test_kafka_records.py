"""Record batches of the Kafka protocol and Arrow: what one side writes, the other reads, whoever wrote it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import CorruptFrame, InvalidRecord, MessageTooLarge
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.kafka.wire.batches import decoding
from ledgermq_broker.kafka.wire.batches.columns import encode_columns
from ledgermq_broker.kafka.wire.batches.compiled import encode_rows
from ledgermq_broker.kafka.wire.batches.decoding import TAG_HEADER, decode_records
from ledgermq_broker.kafka.wire.batches.encoding import encode_records, pairs_of
from ledgermq_broker.kafka.wire.batches.head import read_head
from ledgermq_broker.kafka.wire.batches.refusals import InvalidTimestamp, RecordsRefused
from ledgermq_broker.kafka.wire.batches.strict import NotARecord, read_records
from tests.worlds.batches import mutate, record_batches
from tests.worlds.kafka_batches import (
    CODECS,
    ROWS,
    Fields,
    Pairs,
    Read,
    Row,
    batch_around,
    batch_of,
    body_of,
    read_by_aiokafka,
    read_by_kafka_python,
    seeded_rows,
    split,
    with_body,
)

COUNTS = st.sampled_from([1, 4, 5, 20, 299, 300, 301])


def is_tag(name: str, value: bytes | None) -> bool:
    return name == TAG_HEADER and value is not None


def stored(rows: Sequence[Row]) -> list[dict[str, object]]:
    """What our readers see of the rows."""
    found: list[dict[str, object]] = []
    for row in rows:
        headers: Pairs = [(str(name), value) for name, value in row.headers]
        tags = [place for place, (name, value) in enumerate(headers) if is_tag(name, value)]
        tag = headers.pop(tags[0])[1] if tags else None
        found.append(
            {
                "key": row.key,
                "value": row.value,
                "headers": [{"key": name, "value": value} for name, value in headers] or None,
                "timestamp": None if row.timestamp_ms == -1 else 1000 * row.timestamp_ms,
                "timestampType": 0,
                "tag": None if tag is None else tag.decode(),
            }
        )
    return found


def utf8_tags(rows: Sequence[Row]) -> bool:
    try:
        stored(rows)
    except UnicodeDecodeError:
        return False
    return True


def listed(records: pa.RecordBatch) -> list[dict[str, object]]:
    times = records.column("timestamp").view(pa.int64())
    return records.set_column(3, "timestamp", times).to_pylist()


@given(st.lists(ROWS, min_size=1, max_size=12).filter(utf8_tags), st.sampled_from(sorted(CODECS)), st.integers(0, 5))
@settings(max_examples=40)
def test_what_a_client_sends_is_what_is_stored(rows: list[Row], name: str, width: int) -> None:
    """`width`: numbers may be longer than they need be, which Kafka takes, too."""
    made = decode_records(batch_of(rows, Fields(codec=name, width=width, producer=(7, 1, 40))))
    assert listed(made.records) == stored(rows)
    made.records.validate(full=True)
    assert (made.head.producer_id, made.head.producer_epoch, made.head.base_sequence) == (7, 1, 40)
    assert made.compression == {"none": "none", "lz4": "lz4", "zstd": "zstd"}.get(name, "lz4")


@given(COUNTS, st.integers(0, 2**32), st.sampled_from([None, 0, 1_700_000_000_000]))
@settings(max_examples=20)
def test_long_batches_are_read_as_short_ones(count: int, seed: int, base_ms: int | None) -> None:
    rows = seeded_rows(random.Random(seed), count)
    data = batch_of(rows, Fields(base_timestamp_ms=base_ms))
    assert listed(decode_records(data).records) == stored(rows)
    assert [Read(r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in read_by_kafka_python(data)] == [
        Read(n, r.key, r.value, [(str(name), value) for name, value in r.headers], r.timestamp_ms)
        for n, r in enumerate(rows)
    ]


@given(COUNTS, st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 2, 5]))
@settings(max_examples=100)
def test_the_quick_readers_read_what_the_strict_one_reads_or_leave_it_to_it(
    count: int, seed: int, other: bool, width: int
) -> None:
    """Bytes are changed behind a correct checksum: no reader may find something else in them. The one by columns
    leaves nothing that is valid. `width`: numbers may be longer than they need be.
    """
    rng = random.Random(seed)
    rows = seeded_rows(rng, count)
    good = batch_of(rows, Fields(width=width))
    body = good[61:]
    if rng.random() < 0.9:
        body = mutate(rng, body, body_of(seeded_rows(rng, 3)) if other else b"\xff" * 9)
    head = read_head(with_body(good, body))
    try:
        strict = [Read(n, *r[:3], r[3]) for n, r in enumerate(read_records(body, count, head.base_timestamp_ms))]
        wanted = stored([Row(r.key, r.value, r.headers, r.timestamp_ms or 0) for r in strict])
    except (InvalidRecord, UnicodeDecodeError):
        wanted = None
    for read in (decoding._decode_rows, decoding._decode_by_columns):
        try:
            assert listed(read(head, body)) == wanted
        except InvalidTimestamp:
            pass
        except (NotARecord, IndexError, RecordsRefused):
            assert wanted is None or read is decoding._decode_rows


@given(COUNTS, st.integers(0, 2**32))
@settings(max_examples=30)
def test_both_quick_readers_give_the_same_bytes_to_store(count: int, seed: int) -> None:
    """By them the broker knows a repeated batch, which another release may have stored."""
    rows = seeded_rows(random.Random(seed), count)
    data = batch_of(rows)
    head, body = read_head(data), data[61:]
    assert encode_batch(decoding._decode_rows(head, body)) == encode_batch(decoding._decode_by_columns(head, body))


@given(st.binary(max_size=200), st.integers(1, 40), st.sampled_from(sorted(CODECS)))
def test_any_bytes_give_records_or_a_typed_refusal(body: bytes, count: int, name: str) -> None:
    with suppress(InvalidRecord, CorruptFrame, MessageTooLarge):
        decode_records(batch_around(body, count, Fields(codec=name)))


def expected(base: int, records: pa.RecordBatch) -> list[Read]:
    """What a client has to see of stored records."""
    found = []
    for number, row in enumerate(listed(records)):
        us, kind = row["timestamp"], row["timestampType"] or 0
        ms = -1 if us is None else us // 1000  # type: ignore[operator]
        tags: Pairs = [] if row["tag"] is None else [(TAG_HEADER, str(row["tag"]).encode())]
        pairs: Pairs = [(pair["key"] or "", pair["value"]) for pair in row["headers"] or ()]  # type: ignore[attr-defined]
        known = None if ms == -1 else ms
        found.append(
            Read(base + number, row["key"], row["value"], tags + pairs, known, None if known is None else kind)  # type: ignore[arg-type]
        )
    return found


@given(st.lists(st.tuples(st.integers(0, 3), record_batches()), min_size=1, max_size=4), st.integers(1, 2**40))
@settings(max_examples=30)
def test_what_is_stored_is_what_clients_read(parts: list[tuple[int, pa.RecordBatch]], at: int) -> None:
    """`parts`: runs of records behind gaps."""
    runs = []
    for gap, records in parts:
        runs.append((at + gap, records))
        at += gap + len(records)
    data = b"".join(encode_records(runs))
    wanted = [read for base, records in runs for read in expected(base, records)]
    assert read_by_kafka_python(data) == wanted
    assert read_by_aiokafka(data) == wanted


@given(record_batches(), st.integers(62, 2000), st.integers(0, 100))
def test_batches_are_cut_and_lose_nothing(records: pa.RecordBatch, bytes_max: int, base: int) -> None:
    made = list(encode_records([(base, records)], batch_bytes_max=bytes_max))
    assert read_by_kafka_python(b"".join(made)) == expected(base, records)
    assert all(len(batch) <= bytes_max or read_head(batch).record_count == 1 for batch in made)


@given(record_batches(), st.integers(-(2**40), 2**40))
def test_both_encoders_write_the_same_bytes(records: pa.RecordBatch, step: int) -> None:
    count = len(records)
    offsets, deltas = np.arange(count) * 3, np.arange(count, dtype=np.int64) * step
    headers = [pairs_of(row) for row in records.column("headers").to_pylist()]
    few = encode_rows(
        offsets.tolist(),
        deltas.tolist(),
        records.column("key").to_pylist(),
        records.column("value").to_pylist(),
        headers,
    )
    assert bytes(encode_columns(records, offsets, deltas)) == few


@given(COUNTS, st.integers(0, 2**32))
@settings(max_examples=15)
def test_what_was_sent_comes_back(count: int, seed: int) -> None:
    """From a client through our records to a client, past the bounds of both encoders."""
    rows = seeded_rows(random.Random(seed), count)
    records = decode_records(batch_of(rows)).records
    data = b"".join(encode_records([(500, records)]))
    assert [(r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in read_by_kafka_python(data)] == [
        (500 + n, r.key, r.value, list(r.headers), r.timestamp_ms) for n, r in enumerate(rows)
    ]
    assert len(split(data)) == 1
