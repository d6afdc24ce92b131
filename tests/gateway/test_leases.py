"""Queues over HTTP: leases and answers by handle, at any gateway; whose they are, and when they come too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ledgermq.client.queues.leases.handles import handle_of_lease, lease_of_handle
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.settings import GatewaySettings
from tests.gateway.world import QUICK, World, get, world

GROUP = "/v1/queues/workers"
RULES = ("produce,consume,create,alter jobs", "group workers", "produce,create workers.dlq", "consume,create workers.*")
Headers = dict[str, str]


async def fill(at: World, count: int, partitions: int = 1, **more: Any) -> None:
    made = await at.http.post("/v1/topics", json={"name": "jobs", "partitions": partitions}, **more)
    assert made.status_code == 201, made.text
    records = [
        {"value": str(number), "key": f"k{number}", "tag": "odd" if number % 2 else "even"} for number in range(count)
    ]
    stored = await at.http.post("/v1/topics/jobs/records", json={"records": records}, **more)
    assert stored.status_code == 200, stored.text


async def lease(http: httpx.AsyncClient, who: Headers | None = None, **body: Any) -> list[dict[str, Any]]:
    answer = await http.post(f"{GROUP}/leases", json={"topics": ["jobs"]} | body, headers=who)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def say(http: httpx.AsyncClient, leased: list[dict[str, Any]], who: Headers | None = None, **more: Any) -> Any:
    answers = [{"handle": each["handle"]} | more for each in leased]
    answer = await http.post(f"{GROUP}/answers", json={"answers": answers}, headers=who)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@asynccontextmanager
async def second_gateway(at: World) -> AsyncIterator[httpx.AsyncClient]:
    """Another gateway at the same brokers."""
    async with at.client() as base:
        gateway = Gateway(GatewaySettings(port=0, **QUICK), ClusterClock(), base.as_caller, base.as_caller)  # type: ignore[arg-type]
        async with (
            gateway.running(None),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as http,
        ):
            yield http


async def test_any_gateway_takes_the_answer() -> None:
    async with world(brokers=2) as at, second_gateway(at) as other:
        await fill(at, 20, 4)
        seen: list[str] = []
        while found := await lease(at.http, max=6, wait_ms=300):
            assert all(each["attempt"] == 1 and 20_000 < each["lease_ms"] <= 30_000 for each in found)
            assert await say(other, found) == [{"counts": True}] * len(found)
            seen += [each["record"]["value"] for each in found]
        assert sorted(map(int, seen)) == list(range(20))
        queue = (await at.http.get(GROUP)).json()
        assert (queue["backlog"], queue["leased"]) == (0, 0)


async def test_words_and_late_answers() -> None:
    async with world() as at:
        await fill(at, 3)
        acked, refused, dead = await lease(at.http, attempts_max=2)
        assert await say(at.http, [acked]) == [{"counts": True}]
        assert await say(at.http, [refused], word="nack", error="db down") == [{"counts": True}]
        assert await say(at.http, [dead], word="dead_letter", error="not wanted") == [{"counts": True}]
        [again] = await lease(at.http, attempts_max=2)
        assert (again["record"]["value"], again["attempt"]) == ("1", 2)
        assert await say(at.http, [refused, again], word="extend", lease_ms=60_000) == [
            {"counts": False, "late": True},
            {"counts": True},
        ]
        assert await say(at.http, [again], word="nack", error="still down") == [{"counts": True}]
        assert await lease(at.http, wait_ms=0) == []
        letters = (await at.http.get("/v1/groups/workers/dead-letters")).json()["letters"]
        assert {each["record"]["value"]: each["error"] for each in letters} == {"2": "not wanted", "1": "still down"}
        assert await say(at.http, [acked], word="return") == [{"counts": False, "late": True}]


async def test_the_first_filter_of_a_group_counts() -> None:
    async with world() as at:
        await fill(at, 4)
        assert [each["record"]["value"] for each in await lease(at.http, max=1, filter="even")] == ["0"]
        for other in ({"filter": "odd"}, {}):
            answer = await at.http.post(f"{GROUP}/leases", json={"topics": ["jobs"], **other})
            assert (answer.status_code, answer.json()["code"]) == (409, "FILTER_CONFLICT"), answer.text
        answer = await at.http.post(f"{GROUP}/leases", json={"topics": ["jobs"], "filter": "FUNCTION(a)"})
        assert answer.status_code == 400


async def test_a_handle_belongs_to_its_caller_and_its_group() -> None:
    async with world(rules=True) as at:
        root, alice, bob = await at.user("root"), await at.user("alice", *RULES), await at.user("bob", *RULES)
        await fill(at, 2, headers=root)
        mine = await lease(at.http, alice)
        assert len(mine) == 2
        for path, who, status, code in (
            (GROUP, bob, 403, "OTHER_CALLER"),
            (GROUP, {}, 401, "UNAUTHENTICATED"),
            ("/v1/queues/others", alice, 409, "OTHER_GROUP"),
        ):
            body = {"answers": [{"handle": mine[0]["handle"]}]}
            answer = await at.http.post(f"{path}/answers", json=body, headers=who)
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        forged = handle_of_lease(lease_of_handle(mine[0]["handle"])._replace(group="others"))
        answer = await at.http.post("/v1/queues/others/answers", json={"answers": [{"handle": forged}]}, headers=alice)
        assert (answer.status_code, answer.json()["code"]) == (403, "UNAUTHORIZED"), "brokers decide"
        assert (await at.http.get(GROUP, headers=root)).json()["leased"] == 2
        assert await say(at.http, mine, alice) == [{"counts": True}] * 2
        answer = await at.http.post(f"{GROUP}/leases", json={"topics": ["jobs"]}, headers=await at.user("mallory"))
        assert answer.status_code == 403


async def test_another_token_of_the_same_principal_may_answer() -> None:
    """A token is renewed while work is under way."""
    async with world(rules=True) as at:
        await fill(at, 1, headers=await at.user("root"))
        found = await lease(at.http, await at.user("alice", *RULES))
        assert await say(at.http, found, await at.user("alice")) == [{"counts": True}]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"answers": []}, "length"),
        ({"answers": [{"handle": "q1.AAAA"}]}, "checksum"),
        ({"answers": [{"handle": "x" * 3_000}]}, "length"),
        ({"answers": [{"handle": "d1.ZPx0JAoGb3JkZXJzEAcYAyCAgICAgCAoCTD7__________8B"}]}, "handle of a leased"),
        ({"answers": [{"handle": "\x00"}]}, "handle"),
        ({"answers": [{"handle": "GOOD"}, {"handle": "GOOD", "delay_ms": 5}]}, "nack"),
        ({"answers": [{"handle": "GOOD"}, {"handle": "GOOD", "word": "nack", "lease_ms": 5}]}, "extend"),
        ({"answers": [{"handle": "GOOD", "word": "drop"}]}, "drop"),
    ],
)
async def test_what_is_refused_has_done_nothing(body: Any, text: str) -> None:
    async with world() as at:
        await fill(at, 1)
        [mine] = await lease(at.http)
        for each in body["answers"]:
            each["handle"] = mine["handle"] if each["handle"] == "GOOD" else each["handle"]
        answer = await at.http.post(f"{GROUP}/answers", json=body)
        assert answer.status_code == 400, answer.text
        assert text in answer.text
        assert (await at.http.get(GROUP)).json()["leased"] == 1


async def test_a_caller_that_leaves_keeps_no_lease() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "jobs", "partitions": 2})
        body = b'{"topics":["jobs"],"wait_ms":20000}'
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", at.port)
            head = get(f"{GROUP}/leases", "Content-Type: application/json", f"Content-Length: {len(body)}")
            writer.write(head.replace(b"GET", b"POST", 1) + body)
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()
        await at.http.post("/v1/topics/jobs/records", json={"records": [{"value": "one"}]})
        [found] = await lease(at.http, wait_ms=10_000)
        assert (found["record"]["value"], found["attempt"]) == ("one", 1)


async def test_a_gateway_that_stops_answers_those_that_wait() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "jobs", "partitions": 1})
        waiting = asyncio.create_task(lease(at.http, wait_ms=50_000))
        await asyncio.sleep(0.5)
        at.gateway.service.stopping.set()
        assert await asyncio.wait_for(waiting, 20) == []


async def test_leases_of_a_topic_that_was_deleted_are_told() -> None:
    async with world(cluster={"topic_delete_grace_ms": 0}) as at:
        await fill(at, 1)
        found = await lease(at.http)
        assert (await at.http.delete("/v1/topics/jobs?now=true")).status_code == 204
        answer = await at.http.post(f"{GROUP}/answers", json={"answers": [{"handle": found[0]["handle"]}]})
        assert answer.status_code in (404, 503), answer.text
        assert answer.json()["results"][0]["counts"] is False
