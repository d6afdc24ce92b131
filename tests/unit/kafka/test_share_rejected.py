"""What members of share groups reject, as it is read again for its copies."""

from __future__ import annotations

from crc32c import crc32c

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.kafka.handlers.shares.acknowledging import failed_of
from tests.worlds.batches import batch_of


def fetched(base: int, count: int) -> tuple[pb.FetchedPartition, bytes]:
    """One batch of so many messages."""
    data = encode_batch(batch_of([{"value": b"%d" % (base + n)} for n in range(count)]))
    part = pb.FetchedPartition(topic="t", partition=0)
    part.batches.add(base_offset=base, record_count=count, length=len(data), crc=crc32c(data))
    return part, data


def span(first: int, last: int, lease: int) -> pb.SharedSpan:
    return pb.SharedSpan(first=first, last=last, epoch=1, lease=lease, word=pb.REJECT)


def test_a_batch_that_begins_before_the_place_of_a_read_gives_no_message_twice() -> None:
    """A merged file ends within a batch of the segment behind it."""
    wanted = [(span(0, 9, 7), 1), (span(12, 30, 8), 2)]
    read = [failed_of(*fetched(0, 6), wanted, 0, 6), failed_of(*fetched(4, 16), wanted, 6, 20)]
    ranges = [
        [(one.part.lease, each.first, each.last, each.deliveries) for one in failed for each in one.ranges]
        for failed in read
    ]
    assert ranges == [[(7, 0, 5, 1)], [(7, 6, 9, 1), (8, 12, 19, 2)]]
