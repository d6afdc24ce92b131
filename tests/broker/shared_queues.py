"""Each way in which a principal begins a queue group in a partition."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.queue_calls import request_of
from tests.broker.shared_groups import Caller, refusal


async def one_queue_by_a_member(caller: Caller, n: int) -> pb.Error | None:
    return await queue_begun(caller, f"{caller.topic}-{n}")


async def queue_begun(caller: Caller, group: str) -> pb.Error | None:
    frame = await caller.line.share_fetch(request_of(group=group, topic=caller.topic))
    return next((part.error for part in frame.header.partitions if part.HasField("error")), None)


async def one_queue_by_a_reset(caller: Caller, n: int) -> pb.Error | None:
    request = pb.ResetSharesRequest(group=f"{caller.topic}-{n}", resets=[pb.ShareReset(topic=caller.topic, offset=0)])
    return await refusal(caller.line.reset_shares(request))


async def one_queue_by_a_reset_after_a_deletion(caller: Caller, n: int) -> pb.Error | None:
    """A deletion whose nonce is remembered, and then the first reset."""
    assert await queue_deleted(caller, n, bytes(15) + bytes([n])) is None
    return await one_queue_by_a_reset(caller, n)


async def queue_deleted(caller: Caller, n: int, nonce: bytes = b"") -> pb.Error | None:
    request = pb.ResetSharesRequest(
        group=f"{caller.topic}-{n}", resets=[pb.ShareReset(topic=caller.topic)], nonce=nonce
    )
    return await refusal(caller.line.reset_shares(request))


QUEUES = (one_queue_by_a_member, one_queue_by_a_reset, one_queue_by_a_reset_after_a_deletion)
