"""Lists that are too long: by a principal without any rule, of every method, and what the audit log keeps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import DESCRIBE_TOPICS, Kind
from ledgermq.protocol.status import ERROR_KEY
from tests.attacks.cluster import SEND_S_MAX, SLOW_S, attacked, raw_channel, slowest_send_s, status_of, unary
from tests.unit.test_list_bounds import ALL, filled, items_max_of, request_of


@pytest.mark.slow
async def test_long_lists_stop_no_other_principal(tmp_path: Path) -> None:
    """A list of a hundred thousand names was judged name by name, with an audit line for each: 9 s in which
    the broker answered no other call.
    """
    async with (
        attacked(tmp_path) as at,
        raw_channel(at) as channel,
        at.client("victim") as client,
        client.producer() as producer,
    ):
        await producer.send("orders", b"warm")
        for method, path in ALL:
            request = filled(request_of(method), path, items_max_of(path[-1]) + 1).SerializeToString()
            if method.kind is Kind.UNARY:
                call = unary(channel, method)(request, metadata=at.metadata("nobody"), timeout=SLOW_S)
                await status_of(call)
                codes = [pb.Error.FromString(v).code for key, v in await call.trailing_metadata() if key == ERROR_KEY]
                assert codes == [InvalidRequest.code], (method.name, path[-1].name)

        allowed = pb.DescribeTopicsRequest(topics=[f"mine{number}" for number in range(10_000)]).SerializeToString()
        sending = asyncio.create_task(slowest_send_s(producer, 5))
        for _ in range(5):
            await unary(channel, DESCRIBE_TOPICS)(allowed, metadata=at.metadata("nobody"), timeout=SLOW_S)
        assert await sending < SEND_S_MAX
        lines = [json.loads(line) for line in at.audit.read_text().splitlines()]
        refused = [line for line in lines if line["principal"] == "user:nobody"]
        assert [line["count"] for line in refused if line["operation"] == "describe"][:1] == [10_000]
        assert len(refused) < 60, "a line for each call, and not for each name"
