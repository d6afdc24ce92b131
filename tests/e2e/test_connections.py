"""Who is connected, by real gRPC: `client.list_connections`, and what a broker says of its process."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import ledgermq
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings


async def test_callers_are_listed_with_what_they_write_and_read(tmp_path: Path) -> None:
    settings = load_settings(None, host="127.0.0.1", port=0, bundles=2, background_compaction=False)
    async with (
        await Node.start(tmp_path.as_uri(), settings, Sources()) as node,
        ledgermq.connect(node.address, client_id="shop") as shop,
        ledgermq.connect(node.address, client_id="report") as report,
    ):
        await shop.create_topic("orders", 1)
        async with shop.producer() as producer:
            await producer.send("orders", b"1")
            async with report.consumer("orders", start="earliest") as consumer:
                assert len(await consumer.fetch(max_records=1, timeout=20)) == 1
                found = {each.client_id: each for each in await report.list_connections()}
        assert found["shop"].produces == ("orders",)
        assert found["report"].reads == ("orders",)
        assert found["shop"].reads == found["report"].produces == ()
        assert found["shop"].principal == "anonymous"
        assert found["shop"].client.startswith(f"ledgermq-python/{version('ledgermq')} ")
        assert "127.0.0.1" in found["shop"].address
        assert found["shop"].calls > 1
        assert found["report"].calls_now > 0, "the list itself, and the stream"
        [broker] = await report.describe_brokers()
        assert broker.memory_bytes is not None
        assert broker.memory_bytes > 10_000_000
        assert broker.numbers["connected_callers"] >= 2
        assert "object_store_secret" not in str(broker.settings)
