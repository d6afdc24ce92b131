"""What brokers say of themselves, who is connected, lags, queues and transactions, over HTTP."""

from __future__ import annotations

import ledgermq
from tests.gateway.test_events import produce, topic
from tests.gateway.world import World, world


async def commit(at: World, group: str, offset: int) -> None:
    async with at.client() as client:
        topic_id = (await client.describe_topic("t")).topic_id
        await client.groups.commit(group, {ledgermq.TopicPartition("t", 0): (topic_id, offset)})


async def test_lags_come_in_pages_of_groups_and_by_partition() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", {"value": "a"}, {"value": "b"}, {"value": "c"})
        for number, group in enumerate(("billing", "mailer", "report")):
            await commit(at, group, number)
        page = (await at.http.get("/v1/lags?limit=2")).json()
        assert [(each["group"], each["records"]) for each in page["lags"]] == [("billing", 3), ("mailer", 2)]
        last = (await at.http.get(f"/v1/lags?limit=2&after={page['after']}")).json()
        assert ([each["group"] for each in last["lags"]], last["after"]) == (["report"], None)
        assert (await at.http.get("/v1/lags?topic=other")).json()["lags"] == []
        one = (await at.http.get("/v1/groups/report/lag")).json()["lags"]
        assert [(each["topic"], each["partition"], each["records"]) for each in one] == [("t", 0, 1)]


async def test_topics_are_cut_by_brokers() -> None:
    async with world() as at:
        for name in ("a.1", "a.2", "b.1"):
            await topic(at, name)
        page = (await at.http.get("/v1/topics?limit=1&prefix=a.")).json()
        assert ([each["name"] for each in page["topics"]], page["after"]) == (["a.1"], "a.1")
        page = (await at.http.get("/v1/topics?limit=1&prefix=a.&after=a.1")).json()
        assert ([each["name"] for each in page["topics"]], page["after"]) == (["a.2"], None)


async def test_brokers_connections_queues_and_transactions() -> None:
    async with world(brokers=2) as at:
        found = (await at.http.get("/v1/brokers")).json()["brokers"]
        assert {each["address"] for each in found} == {"broker-0:1", "broker-1:1"}
        assert all(each["settings"]["heartbeat_interval_ms"] == "1000" for each in found)
        for path in ("connections", "queues", "transactions", "tables"):
            answer = await at.http.get(f"/v1/{path}")
            assert (answer.status_code, answer.json()[path]) == (200, []), path
        assert (await at.http.get("/v1/loads")).status_code == 200


async def test_who_may_not_see_the_cluster_gets_403() -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "describe t")
        for path in ("brokers", "connections", "loads", "tables"):
            assert (await at.http.get(f"/v1/{path}", headers=alice)).status_code == 403, path
        assert (await at.http.get("/v1/lags", headers=alice)).json() == {"lags": [], "after": None}


async def test_tables_come_in_pages() -> None:
    async with world(brokers=2) as at:
        settings = {"table.format": "delta", "table.delta.place": "topic"}
        for name in ("a", "b", "c"):
            made = await at.http.post("/v1/topics", json={"name": name, "partitions": 1, "settings": settings})
            assert made.status_code == 201, made.text
        page = (await at.http.get("/v1/tables?limit=2")).json()
        assert ([each["topic"] for each in page["tables"]], page["after"]) == (["a", "b"], "b")
        first = page["tables"][0]
        assert (first["format"], first["version"], first["rows"], first["trouble"]) == ("delta", None, 0, "")
        rest = (await at.http.get(f"/v1/tables?limit=2&after={page['after']}")).json()
        assert ([each["topic"] for each in rest["tables"]], rest["after"]) == (["c"], None)
