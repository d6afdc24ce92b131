"""A keyed topic with a table in a cluster: its owner shows each version as a whole, another broker takes over, and the
topic cannot become plain while it has the table.
"""

from __future__ import annotations

import asyncio
import io

import pyarrow.parquet as pq
import pytest

from ledgermq.errors import InvalidConfig
from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import decode_path
from ledgermq_ledger.tables.formats.delta import DeltaLog
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.test_keyed_topics import AGES, KEYED, clean, client_of, put, restart
from tests.virtual_time import virtual, virtual_sources

TABLE = KEYED | {"table.format": "delta", "table.delta.place": "topic", "table.keep.ms": 60_000}


async def rows_of(cluster: Cluster, folder: str) -> dict[bytes, bytes | None]:
    """As a reader of the newest version sees it."""
    table = await DeltaLog(cluster.store, folder, virtual_sources(97)).read()
    rows = []
    for path in table.files:
        data = await cluster.store.get(folder + decode_path(path))
        rows += pq.read_table(io.BytesIO(data), columns=["key", "value"]).to_pylist()
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


@virtual
async def test_the_latest_values_are_a_table() -> None:
    async with cluster_of("a:1", constants=AGES) as cluster, client_of(cluster) as client:
        topic = await client.create_topic("t", 1, TABLE)
        folder = keys.keyed_topic(topic.topic_id)
        await put(client, ("a", "1"), ("b", "1"))
        await clean(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster, folder) == {b"a": b"1", b"b": b"1"}
        await put(client, ("a", "2"), ("b", None))
        await clean(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster, folder) == {b"a": b"2", b"b": None}
        await restart(cluster)
        await put(client, ("c", "1"))
        await clean(cluster)
        await asyncio.sleep(10)
        assert (await rows_of(cluster, folder))[b"c"] == b"1"
        found = await client.tables.describe("t")
        assert (found.folder.endswith(folder), found.rows, found.waits_for) == (True, 3, "")
        with pytest.raises(InvalidConfig, match=r"cleanup\.policy cannot change"):
            await client.alter_topic("t", settings={"cleanup.policy": "delete"})
        await client.tables.drop("t")
        assert await rows_of(cluster, folder) == {}
