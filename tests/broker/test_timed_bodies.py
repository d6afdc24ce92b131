"""Bodies of timed messages that were dropped for want of memory: they are read again when they are due."""

from __future__ import annotations

from collections import Counter

import pytest

from ledgermq.buffers import Buffer
from ledgermq_broker.timed import hidden_logs
from ledgermq_broker.timed.state.blocks import Block, decode_block
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timer_calls import constants_of, held_of, now_s, send, watched

BUNDLES = {"bundles": 3}


@in_cluster("a:1", constants=constants_of(body_bytes=20_000, chunk_bytes=4000, flush_after_ms=600_000), **BUNDLES)
async def test_bodies_beyond_the_budget_are_read_again_when_they_are_due(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read beside them in the same request is not decoded: that would be all that waits, each time."""
    decoded: Counter[bytes] = Counter()

    def counted(key: bytes, value: Buffer | None) -> Block:
        decoded[bytes(value or b"")] += 1
        return decode_block(key, value)

    monkeypatch.setattr(hidden_logs, "decode_block", counted)
    await cluster.create("t", 1)
    begun_s = now_s()
    async with watched(cluster, "t", 0) as watcher:
        for number in range(50):
            body = b"%d-" % number + b"x" * 2000
            await send(cluster, "t", 0, (body, begun_s + 60 - number))
        held = held_of(cluster)
        assert held.waiting.body_bytes <= 20_000
        assert held.waiting.rows == 50
        found = await watcher.until(50)
        assert [int(value.split(b"-")[0]) for value in found] == list(range(49, -1, -1))
    assert 30 <= len(decoded) == decoded.total() <= 50
