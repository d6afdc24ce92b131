"""Fetch and answer as members of a queue group do, for tests in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.protocol.status import error_from_proto
from tests.broker.cluster import Cluster
from tests.broker.groups import ask

GROUP, TOPIC = "workers", "jobs"


@dataclass(frozen=True)
class Leased:
    offset: int
    value: bytes
    deliveries: int
    epoch: int
    lease: int


def request_of(records_max: int = 10, **more: int | bool | str) -> pb.ShareFetchRequest:
    member, group = str(more.pop("member", "m1")), str(more.pop("group", GROUP))
    partition = pb.SharePartition(topic=str(more.pop("topic", TOPIC)), partition=0)
    return pb.ShareFetchRequest(
        group=group,
        member_id=member,
        partitions=[partition],
        max_records=records_max,
        **more,  # type: ignore[arg-type]
    )


def leased_of(frame: ShareFetchFrame) -> list[Leased]:
    payload, at = memoryview(b"".join(frame.payload)), 0
    found = []
    for part in frame.header.partitions:
        if part.HasField("error"):
            raise error_from_proto(part.error)
        values: dict[int, bytes] = {}
        for batch in part.batches:
            rows = decode_batch(payload[at : at + batch.length]).column("value").to_pylist()
            values |= dict(enumerate(rows, batch.base_offset))
            at += batch.length
        for r in part.ranges:
            found += [Leased(o, values[o], r.deliveries, part.epoch, part.lease) for o in range(r.first, r.last + 1)]
    return found


async def fetch(cluster: Cluster, records_max: int = 10, **more: int | bool | str) -> list[Leased]:
    request = request_of(records_max, **more)

    async def call(line: Connection) -> list[Leased]:
        return leased_of(await line.share_fetch(request))

    return await ask(cluster, call)


async def answer(
    cluster: Cluster, messages: list[Leased], word: pb.ShareWord = pb.ACCEPT, time_ms: int = 0, group: str = GROUP
) -> list[int]:
    """The offsets for which it did not count."""

    async def call(line: Connection) -> list[int]:
        return await answer_at(line, messages, word, time_ms, group)

    return await ask(cluster, call)


async def answer_at(
    line: Connection, messages: list[Leased], word: pb.ShareWord, time_ms: int = 0, group: str = GROUP
) -> list[int]:
    spans = [
        pb.SharedSpan(first=m.offset, last=m.offset, epoch=m.epoch, lease=m.lease, word=word, time_ms=time_ms)
        for m in messages
    ]
    part = pb.SharePartitionAnswer(topic=TOPIC, partition=0, spans=spans)
    found = await line.share_answer(pb.ShareAnswerRequest(group=group, member_id="m1", partitions=[part]))
    [result] = found.results
    if result.HasField("error"):
        raise error_from_proto(result.error)
    return [offset for span in result.late for offset in range(span.first, span.last + 1)]


async def shown(cluster: Cluster, bundle: int) -> list[pb.ShareInfo]:
    request = pb.ListSharesRequest(bundle=bundle, members=True)
    return list((await ask(cluster, lambda line: line.list_shares(request))).shares)
