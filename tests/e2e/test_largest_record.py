"""The largest record that the page of settings promises is stored, whatever it is made of; one byte more is refused."""

from __future__ import annotations

import random
from typing import Any, get_args

import pyarrow as pa
import pytest

from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.record import row_bytes, row_of
from ledgermq.errors import MessageTooLarge
from ledgermq.protocol.batches.records import Compression, encode_batch
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.retrying import all_of
from tests.e2e.test_client_takeover import client_of

LARGEST = 33_488_896
HEADERS = [("h", b"x" * 8)] * 1000


def test_it_fits_into_a_request_with_every_compression() -> None:
    noise = random.Random(1).randbytes(LARGEST - 9000)
    row = row_of(noise, None, HEADERS, "tag", None, 0)
    assert row_bytes(row) == LARGEST == RECORD_BYTES_MAX
    for compression in get_args(Compression):
        assert len(encode_batch(rows_to_arrow([row]), compression)) <= FRAME_PAYLOAD_BYTES_MAX


@pytest.mark.slow
@in_cluster("a:1")
async def test_the_largest_record(cluster: Cluster) -> None:
    noise = random.Random(1).randbytes(LARGEST)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings={"max.message.bytes": "33554432"})
        async with client.producer(compression="lz4") as producer:
            await producer.send("t", noise)
            with pytest.raises(MessageTooLarge, match=r"takes up to 33488896"):
                await producer.send("t", noise + b"x")
            with pytest.raises(MessageTooLarge, match=r"takes up to 33488896"):
                await (await producer.send_batch("t", pa.table({"value": [noise + b"x"]})))
        async with client.producer() as producer:
            key, value = noise[: LARGEST // 2], noise[LARGEST // 2 : -9000]
            await producer.send("t", value, key=key, headers=HEADERS, tag="tag")
        found = await all_of(client, "t")
        assert [message.value for message in found] == [noise, value]
        assert found[-1].key == key
        assert sizes(found[-1]) == LARGEST


def sizes(message: Any) -> int:
    return len(message.key) + len(message.value) + sum(len(name) + len(value) for name, value in message.headers)
