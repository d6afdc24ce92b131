"""What was leased, as a Kafka client gets it."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from ledgermq.client.messages.expiry import EXPIRES_MS, TopicTtl
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.kafka.handlers.shares.converting import DELIVERIES_MAX, Sent, sent
from ledgermq_broker.kafka.wire.batches.head import end_of
from tests.worlds.batches import batch_of
from tests.worlds.kafka_batches import read_by_kafka_python, split

Ranges = list[tuple[int, int, int]]


def leased(ranges: Ranges, *bases: int, count: int = 10, size: int = 10) -> tuple[pb.LeasedPartition, list[bytes]]:
    """A partition with batches of `count` messages at these offsets; each value is its offset."""
    part, payload = pb.LeasedPartition(topic="t", partition=0, epoch=1, lease=1), []
    for first, last, deliveries in ranges:
        part.ranges.add(first=first, last=last, deliveries=deliveries)
    for base in bases:
        data = encode_batch(batch_of([{"value": b"%d" % (base + n) * size} for n in range(count)]))
        part.batches.add(base_offset=base, record_count=count, length=len(data), crc=crc32c(data))
        payload.append(data)
    return part, payload


def offsets(found: Sent) -> list[int]:
    records = [one for batch in split(b"".join(found.records)) for one in read_by_kafka_python(batch)]
    return [record.offset for record in records]


def spans(ranges: list[pb.LeasedRange]) -> Ranges:
    return [(one.first, one.last, one.deliveries) for one in ranges]


def test_only_leased_messages_are_sent() -> None:
    wanted = [(2, 3, 1), (8, 11, 2), (25, 25, 1)]
    found = sent(*leased(wanted, 0, 10, 20), bytes_max=10**6, first=True)
    assert offsets(found) == [2, 3, 8, 9, 10, 11, 25]
    assert (spans(found.ranges), found.left, found.failed) == (wanted, [], [])
    assert end_of(found.records[-1]) == 26


def test_what_was_delivered_too_often_is_not_sent() -> None:
    often = DELIVERIES_MAX + 1
    found = sent(*leased([(0, 1, DELIVERIES_MAX), (2, 4, often), (5, 5, 63)], 0), bytes_max=10**6, first=True)
    assert offsets(found) == [0, 1]
    assert spans(found.failed) == [(2, 4, often), (5, 5, 63)]
    found = sent(*leased([(2, 4, often)], 0), bytes_max=10**6, first=True)
    assert (found.records, found.ranges, spans(found.failed)) == ([], [], [(2, 4, often)])


def test_what_has_no_room_is_left() -> None:
    part, payload = leased([(0, 9, 1), (10, 29, 1)], 0, 10, 20, size=200_000)
    found = sent(part, payload, bytes_max=3_000_000, first=True)
    sent_to = max(offsets(found))
    assert 0 < found.size_bytes <= 3_000_000
    assert spans(found.ranges)[-1][1] == sent_to
    assert spans(found.left)[0][0] == sent_to + 1
    assert spans(found.left)[-1][1] == 29
    nothing = sent(part, payload, bytes_max=100, first=False)
    assert (nothing.records, nothing.ranges, spans(nothing.left)) == ([], [], [(0, 29, 1)])
    assert sent(part, payload, bytes_max=100, first=True).records, "an answer has one batch, however large"


@pytest.mark.parametrize(("damaged", "good"), [(0, (10, 19)), (1, (0, 9))])
def test_a_batch_that_cannot_be_read_is_left_and_others_are_sent(damaged: int, good: tuple[int, int]) -> None:
    part, payload = leased([(0, 19, 1)], 0, 10)
    payload[damaged] = payload[damaged][:-1] + bytes([payload[damaged][-1] ^ 1])
    found = sent(part, payload, bytes_max=10**6, first=True)
    assert found.damage is not None
    assert offsets(found) == list(range(good[0], good[1] + 1))
    assert spans(found.ranges) == [(*good, 1)]
    assert spans(found.left) == [(10 * damaged, 10 * damaged + 9, 1)]


def test_expired_messages_are_neither_sent_nor_left() -> None:
    part, payload = leased([(0, 3, 1), (6, 12, 2), (13, 29, 1)], 0, 10, 20)
    expires = {1: 1000, 2: 1000, 3: 5000, 6: 1000, 12: 1000, 13: 1000}
    for at in (0, 1):
        rows = [
            {
                "value": b"v",
                "timestamp": 0,
                "headers": [{"key": EXPIRES_MS, "value": b"%d" % expires[n]}] if n in expires else None,
            }
            for n in range(10 * at, 10 * at + 10)
        ]
        payload[at] = encode_batch(batch_of(rows))
        part.batches[at].length, part.batches[at].crc = len(payload[at]), crc32c(payload[at])
    found = sent(part, payload, bytes_max=10**6, first=True, now_us=1_000_000)
    assert offsets(found) == [0, 3, *range(7, 12), *range(14, 30)]
    assert spans(found.expired) == [(1, 2, 1), (6, 6, 2), (12, 12, 2), (13, 13, 1)]
    assert (spans(found.ranges), found.left) == ([(0, 0, 1), (3, 3, 1), (7, 11, 2), (14, 29, 1)], [])
    earlier = sent(part, payload, bytes_max=10**6, first=True, now_us=999_999)
    assert (earlier.expired, len(offsets(earlier))) == ([], 28)
    by_topic = sent(part, payload, bytes_max=10**6, first=True, now_us=1_000_000, ttl=TopicTtl(None, 1000))
    assert offsets(by_topic) == list(range(20, 30)), "those without a timestamp"
    assert (spans(by_topic.ranges), by_topic.left) == ([(20, 29, 1)], [])
    assert spans(by_topic.expired) == [(0, 3, 1), (6, 12, 2), (13, 19, 1)]
