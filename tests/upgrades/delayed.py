"""Use delayed messages, so that another release is asked the same."""

from __future__ import annotations

from datetime import timedelta

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import frame_of
from tests.e2e.raw_client import RawClient


async def use_delayed(client: ledgermq.Client, target: str, topic: str) -> None:
    """Make every call that there is about delayed messages, in a topic of one partition that no other call
    reads: when the calls are repeated, what waits now may be due already.
    """
    async with client.producer() as producer:
        kept = await producer.send(topic, "kept", key="k", delay=timedelta(days=300))
        recalled = await producer.send(topic, "recalled", delay_level=18)
    for result in (recalled, kept):
        assert result.handle is not None
    assert await client.recall(recalled.handle or "") is ledgermq.RecallOutcome.RECALLED
    await client.list_delayed(topic)
    async with RawClient(target) as raw:  # what the SDK leaves to other clients
        [result_once] = (await raw.line(target).produce_delayed_once(frame_of(topic, 0, b"past due"))).results
        assert not result_once.HasField("error"), result_once.error
        await raw.line(target).list_delayed(pb.ListDelayedRequest(bundle=1))
