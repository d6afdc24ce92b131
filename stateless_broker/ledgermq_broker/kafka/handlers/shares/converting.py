"""Turn leased messages into the records of a ShareFetch answer: the leased ones alone, as Kafka batches with gaps.

Pure. Large batches take milliseconds of the processor, so callers pass them to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.buffers import Buffer
from ledgermq.client.messages.expiry import TopicTtl, expiries_of
from ledgermq.errors import DataDamaged
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.answers import decoded
from ledgermq_broker.kafka.wire.batches.encoding import encode_records
from ledgermq_broker.kafka.wire.batches.head import end_of

DELIVERIES_MAX = 5
"""Deliveries of a message, as Kafka's `group.share.delivery.count.limit` has it, and `attempts_max` of our members."""


@dataclass(slots=True)
class Sent:
    """What a client gets of one partition. `left`: leased, but without room in this answer, or in a batch that cannot
    be read (`damage`). `expired`: their time to live is over. `failed`: delivered as often as is allowed, and never
    finished. `payload`: the bytes of each batch, if there are such.
    """

    records: list[Buffer] = field(default_factory=list)
    ranges: list[pb.LeasedRange] = field(default_factory=list)
    left: list[pb.LeasedRange] = field(default_factory=list)
    expired: list[pb.LeasedRange] = field(default_factory=list)
    failed: list[pb.LeasedRange] = field(default_factory=list)
    payload: Sequence[Buffer] = ()
    damage: DataDamaged | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.records))


def sent(
    part: pb.LeasedPartition,
    payload: Sequence[Buffer],
    *,
    bytes_max: int,
    first: bool,
    ttl: TopicTtl | None = None,
    now_us: int = 0,
) -> Sent:
    """Convert what was leased of one partition. `payload`: the bytes of each batch. `bytes_max`: bound of the records.
    `first`: the answer has no record yet, so one batch may be larger. `ttl`: of the topic. `now_us`: since the epoch.
    """
    found = Sent(failed=[each for each in part.ranges if each.deliveries > DELIVERIES_MAX])
    if found.failed:
        found.payload = payload
    wanted = [each for each in part.ranges if each.deliveries <= DELIVERIES_MAX]
    pieces = [list(_inside(batch, wanted)) for batch in part.batches]
    bad: set[int] = set()

    def runs() -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode one batch after the other, as long as the answer has room."""
        for number, (batch, data) in enumerate(zip(part.batches, payload, strict=True)):
            if not pieces[number]:
                continue
            try:
                records = decoded(part, batch, data)
            except DataDamaged as damage:
                found.damage = damage
                bad.add(number)
                continue
            pieces[number] = _living(
                pieces[number], batch.base_offset, expiries_of(records, ttl), now_us, found.expired
            )
            for one in pieces[number]:
                yield one.first, records.slice(one.first - batch.base_offset, one.last - one.first + 1)

    end = 0
    for encoded in encode_records(runs()):
        if found.size_bytes + len(encoded) > bytes_max and not (first and not found.records):
            break
        found.records.append(encoded)
        end = end_of(encoded)
    for number, inside in enumerate(pieces):
        sent_to = 0 if number in bad else end
        for one in inside:
            _add(found.ranges, one.first, min(one.last, sent_to - 1), one.deliveries)
            _add(found.left, max(one.first, sent_to), one.last, one.deliveries)
    return found


def _inside(batch: pb.FetchedBatch, wanted: Sequence[pb.LeasedRange]) -> Iterator[pb.LeasedRange]:
    """Yield the parts of ranges, which ascend, that a batch holds."""
    base, last = batch.base_offset, batch.base_offset + batch.record_count - 1
    for number in range(bisect_left(wanted, base, key=lambda one: one.last), len(wanted)):
        each = wanted[number]
        if each.first > last:
            return
        yield pb.LeasedRange(first=max(each.first, base), last=min(each.last, last), deliveries=each.deliveries)


def _living(
    pieces: list[pb.LeasedRange], base: int, expiries: pa.Array | None, now_us: int, expired: list[pb.LeasedRange]
) -> list[pb.LeasedRange]:
    """Return the parts of ranges, of the batch at `base`, that have not expired; add the others to `expired`."""
    if expiries is None or not pc.any(over := pc.less_equal(expiries, now_us)).as_py():
        return pieces
    is_over, living = over.to_pylist(), list[pb.LeasedRange]()
    for one in pieces:
        for offset in range(one.first, one.last + 1):
            _add(expired if is_over[offset - base] else living, offset, offset, one.deliveries)
    return living


def _add(ranges: list[pb.LeasedRange], first: int, last: int, deliveries: int) -> None:
    """Add a range that comes after all others; one that goes on with the last of them becomes a part of it."""
    if first > last:
        return
    if ranges and ranges[-1].last == first - 1 and ranges[-1].deliveries == deliveries:
        ranges[-1].last = last
    else:
        ranges.append(pb.LeasedRange(first=first, last=last, deliveries=deliveries))
