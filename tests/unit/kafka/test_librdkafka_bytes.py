"""Record batches as librdkafka itself writes them: taken from a socket, decoded, compared with what was sent."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from ledgermq_broker.kafka.wire.batches.decoding import decode_records
from ledgermq_broker.kafka.wire.batches.encoding import encode_records
from ledgermq_broker.kafka.wire.batches.head import read_head
from tests.worlds.kafka_batches import read_by_kafka_python
from tests.worlds.kafka_capture import PRODUCER_ID, captured

T0 = 1_700_000_000_000
RECORDS = [
    (
        b"k%d" % n if n % 3 else None,
        b"value %d " % n * (n % 7) if n % 5 else None,
        [("a", b"x"), ("ü", None)] * (n % 2),
        T0 + n,
    )
    for n in range(400)
]
STORED_AS = {"none": "none", "gzip": "lz4", "snappy": "lz4", "lz4": "lz4", "zstd": "zstd"}


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("name", STORED_AS)
def test_what_librdkafka_sends_is_read(name: str, idempotent: bool) -> None:
    with captured() as capture:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{capture.port}",
                "compression.type": name,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.timeout.ms": 30_000,
            }
        )
        for key, value, headers, timestamp in RECORDS:
            producer.produce("t", value, key, partition=0, headers=headers, timestamp=timestamp)
        assert producer.flush(30) == 0
    rows = []
    for batch in capture.batches:
        made = decode_records(batch)
        assert (made.head.codec, made.compression) == (name, STORED_AS[name])
        assert made.head.producer_id == (PRODUCER_ID if idempotent else -1)
        assert made.head.base_sequence == (len(rows) if idempotent else -1)
        again = b"".join(encode_records([(len(rows), made.records)]))
        rows += [(r.key, r.value, r.headers, r.timestamp_ms) for r in read_by_kafka_python(again)]
    assert rows == RECORDS
    assert sum(read_head(batch).record_count for batch in capture.batches) == len(RECORDS)
