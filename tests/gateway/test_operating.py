"""Dead letters, unresolved messages and traces over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.client.groups.retry_topics import Failures, Origin, headers_of
from ledgermq.protocol.naming.unresolved import CHECKS, ID, PARTITION, TOPIC
from tests.broker.access import token
from tests.gateway.test_callers import shared_client
from tests.gateway.world import World, world

Headers = dict[str, str]


async def secret_of_root(at: World, rules: bool) -> str:
    return (await token(at.cluster, "root")).text if rules else ""  # type: ignore[arg-type]  # it uses brokers only


async def bury(at: World, group: str, count: int, *, rules: bool = False) -> None:
    """Put dead letters of messages of `mails` where a member of the group does; every second one timed out."""
    async with at.client(await secret_of_root(at, rules)) as client:
        known = {topic.name for topic in await client.list_topics()}
        for name in {"mails", f"{group}.retry", f"{group}.dlq"} - known:
            await client.create_topic(name, partitions=2 if name.endswith("dlq") else 1)
        async with client.producer() as producer:
            for number in range(count):
                sent = await producer.send("mails", f"mail {number}", key=f"k{number}")
                error = "TimeoutError: timed out" if number % 2 else "ValueError: poison"
                failures = Failures(group, Origin("mails", sent.partition, sent.offset), 3, 1_760_000_000_000, error)
                headers = (("mine", b"x"), *headers_of(failures))
                await producer.send(f"{group}.dlq", f"mail {number}", key=f"k{number}", headers=headers, partition=0)


async def half_messages(at: World, group: str, *names: str, rules: bool = False) -> None:
    """Put half messages for `paid` where the coordinator puts those that no producer knew about."""
    async with at.client(await secret_of_root(at, rules)) as client:
        for topic in ("paid", f"{group}.unresolved"):
            await client.create_topic(topic, partitions=1)
        async with client.producer() as producer:
            for name in names:
                values = {ID: name, TOPIC: "paid", PARTITION: "0", CHECKS: "5"}
                headers = [(header, value.encode()) for header, value in values.items()]
                await producer.send(f"{group}.unresolved", f"value of {name}", headers=headers)


async def letters(at: World, group: str, query: str = "", **more: Any) -> list[tuple[str, str]]:
    answer = await at.http.get(f"/v1/groups/{group}/dead-letters{query}", **more)
    assert answer.status_code == 200, answer.text
    return [(each["place"], each["state"]) for each in answer.json()["letters"]]


async def until_letters(at: World, group: str, wanted: list[str]) -> None:
    """Wait until a settlement is visible, which it is soon after it was made."""
    async with asyncio.timeout(30):
        while [place for place, _ in await letters(at, group)] != wanted:
            await asyncio.sleep(0.05)


async def act(at: World, group: str, verb: str, who: Headers | None = None, **body: Any) -> Any:
    return await at.http.post(f"/v1/groups/{group}/dead-letters/{verb}", json=body, headers=who)


async def values(at: World, topic: str) -> list[str]:
    found = await at.http.get(f"/v1/topics/{topic}/records?from=earliest")
    return [record["value"] for record in found.json()["records"]]


async def until_values(at: World, topic: str, wanted: list[str]) -> None:
    """Wait until a topic has these values; those of a transaction are visible soon after it was committed."""
    async with asyncio.timeout(30):
        while sorted(await values(at, topic)) != wanted:
            await asyncio.sleep(0.05)


async def test_dead_letters_are_listed_in_pages_and_looked_at() -> None:
    async with world() as at:
        await bury(at, "g", 5)
        assert (await at.http.get("/v1/dead-letters")).json() == {"groups": ["g"]}
        path, seen, lefts = "/v1/groups/g/dead-letters?limit=2", [], []
        cursor = ""
        while cursor is not None:
            page = (await at.http.get(path + (f"&cursor={cursor}" if cursor else ""))).json()
            seen += [each["place"] for each in page["letters"]]
            lefts.append(page["left"])
            cursor = page["next"]
        assert (seen, lefts) == ([f"0:{number}" for number in range(5)], [3, 1, 0])
        assert await letters(at, "g", "?error=poison&key=k2") == [("0:2", "waits")]
        assert await letters(at, "g", "?since=1h&topic=mails&key_base64=azM=") == [("0:3", "waits")]
        assert await letters(at, "g", "?before=1h") == []
        letter = (await at.http.get("/v1/groups/g/dead-letters/0/1?values=base64")).json()
        assert (letter["origin"], letter["attempts"], letter["error"]) == ("mails:0:1", 3, "TimeoutError: timed out")
        assert (letter["record"]["key"], letter["record"]["value_base64"]) == ("k1", "bWFpbCAx")
        for wrong, status, code in (
            ("g/dead-letters/0/77", 404, "NO_SUCH_LETTER"),
            ("g/dead-letters/0/x", 400, "INVALID_REQUEST"),
            ("g/dead-letters?since=earliest", 400, "INVALID_REQUEST"),
            ("g/dead-letters?cursor=c1.AAAA", 400, "INVALID_REQUEST"),
            ("nobody/dead-letters", 404, "UNKNOWN_GROUP"),
        ):
            answer = await at.http.get(f"/v1/groups/{wrong}")
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
            assert answer.headers["content-type"] == "application/problem+json"


async def test_dead_letters_are_settled_after_a_preview_each_once() -> None:
    async with world() as at:
        await bury(at, "g", 4)
        preview = (await act(at, "g", "redrive", all=True, error="timed out", limit=1, dry_run=True)).json()
        assert (preview["count"], [each["place"] for each in preview["letters"]]) == (1, ["0:1"])
        assert await values(at, "g.retry") == []
        for count in (1, 0):
            answer = await act(at, "g", "redrive", places=["0:1"])
            assert (answer.status_code, answer.json().get("count")) == (200, count), answer.text
        assert (await act(at, "g", "drop", places=["0:0"])).json()["count"] == 1
        await until_letters(at, "g", ["0:2", "0:3"])
        assert await letters(at, "g", "?settled=true&limit=2") == [("0:0", "dropped"), ("0:1", "redriven")]
        missing = await act(at, "g", "drop", places=["0:2", "0:77"])
        assert (missing.status_code, missing.json()["code"]) == (404, "NO_SUCH_LETTER")
        assert [place for place, _ in await letters(at, "g")] == ["0:2", "0:3"], "what was refused has changed nothing"
        for wrong in ({}, {"all": True, "places": ["0:2"]}, {"places": ["x"]}, {"all": True, "key_base64": "a"}):
            assert (await act(at, "g", "drop", **wrong)).status_code == 400
        assert (await act(at, "g", "redrive", all=True, to="other.dlq")).status_code == 400
        assert (await act(at, "g", "redrive", all=True, to="mails")).json()["count"] == 2
        await until_values(at, "mails", ["mail 0", "mail 1", "mail 2", "mail 2", "mail 3", "mail 3"])
        await until_values(at, "g.retry", ["mail 1"])


async def test_a_cursor_of_a_topic_made_again_is_refused() -> None:
    async with world() as at:
        await bury(at, "g", 2)
        cursor = (await at.http.get("/v1/groups/g/dead-letters?limit=1")).json()["next"]
        assert (await at.http.delete("/v1/topics/g.dlq?now=true")).status_code == 204
        async with asyncio.timeout(30):
            while (await at.http.post("/v1/topics", json={"name": "g.dlq", "partitions": 2})).status_code != 201:
                await asyncio.sleep(0.05)
        answer = await at.http.get(f"/v1/groups/g/dead-letters?cursor={cursor}")
        assert (answer.status_code, answer.json()["code"]) == (409, "OTHER_TOPIC")


async def decide(at: World, decision: str, who: Headers | None = None, **body: Any) -> Any:
    return await at.http.post(f"/v1/unresolved/checkers/{decision}", json=body, headers=who)


async def test_unresolved_messages_are_listed_and_decided() -> None:
    async with world() as at:
        await half_messages(at, "checkers", "b", "a", "c")
        assert (await at.http.get("/v1/unresolved")).json() == {"groups": ["checkers"]}
        first = (await at.http.get("/v1/unresolved/checkers?limit=2")).json()
        assert ([each["id"] for each in first["messages"]], first["left"]) == (["a", "b"], 1)
        rest = (await at.http.get("/v1/unresolved/checkers?after=b")).json()
        assert [(each["id"], each["topic"], each["checks"]) for each in rest["messages"]] == [("c", "paid", 5)]
        shown = (await at.http.get("/v1/unresolved/checkers/message?id=a")).json()
        assert [record["value"] for record in shown["records"]] == ["value of a"]
        gone = await at.http.get("/v1/unresolved/checkers/message?id=x")
        assert (gone.status_code, gone.json()["code"]) == (404, "NO_SUCH_MESSAGE")
        assert (await decide(at, "rollback", ids=["a", "x"])).status_code == 404
        unverified = await decide(at, "commit", ids=["b"])
        assert (unverified.status_code, "is not published" in unverified.json()["detail"]) == (400, True)
        assert len((await at.http.get("/v1/unresolved/checkers")).json()["messages"]) == 3
        for _ in range(2):
            done = await decide(at, "commit", ids=["b"], unverified=True)
            assert [each["decision"] for each in done.json()["messages"]] == ["commit"], done.text
        assert (await decide(at, "rollback", ids=["a"])).status_code == 200
        assert (await decide(at, "commit", ids=["a"], unverified=True)).status_code == 400
        await until_values(at, "paid", ["value of b"])


async def test_a_message_is_traced_to_its_dead_letter() -> None:
    async with world() as at:
        await bury(at, "g", 2)
        offsets = [{"topic": "mails", "partition": 0, "offset": 1}]
        put = await at.http.put("/v1/groups/g/offsets", json={"epoch": 0, "offsets": offsets})
        assert put.status_code == 200, put.text
        found = await at.http.get("/v1/messages/trace?id=mails:0:1&timeout_ms=20000")
        assert found.status_code == 200, found.text
        trace = found.json()
        assert (trace["id"], trace["record"]["value"], trace["unfinished"]) == ("mails:0:1", "mail 1", [])
        assert [(each["group"], each["state"], each["committed"]) for each in trace["groups"]] == [("g", "not read", 1)]
        assert [(each["kind"], each["id"]) for each in trace["copies"]] == [("dead letter", "g.dlq:0:1")]
        for wrong, status in (("mails:0:99", 416), ("nothing", 400), ("other:0:0", 404)):
            answer = await at.http.get(f"/v1/messages/trace?id={wrong}")
            assert answer.status_code == status, answer.text


async def two_callers(at: World) -> None:
    """Two callers on one gateway, each with its own group. Raises AssertionError where one reaches the other's."""
    await bury(at, "of-alice", 2, rules=True)
    await bury(at, "of-bob", 2, rules=True)
    await half_messages(at, "checkers", "h", rules=True)
    alice, bob = [
        await at.user(
            name,
            "describe,consume mails",
            f"describe,consume,produce of-{name}.dlq",
            f"describe,produce of-{name}.retry",
            f"group of-{name}",
            f"transaction of-{name}.dlq",
        )
        for name in ("alice", "bob")
    ]
    for who, group, other in ((alice, "of-alice", "of-bob"), (bob, "of-bob", "of-alice")):
        assert (await at.http.get("/v1/dead-letters", headers=who)).json() == {"groups": [group]}
        paths = [f"groups/{other}/dead-letters{end}" for end in ("", "/0/0")]
        for path in (*paths, "unresolved/checkers/message?id=h", f"messages/trace?id={other}.dlq:0:0"):
            answer = await at.http.get(f"/v1/{path}", headers=who)
            assert answer.status_code in (403, 404), (path, answer.text)
        assert (await at.http.get("/v1/unresolved", headers=who)).json() == {"groups": []}
        assert (await decide(at, "rollback", who, ids=["h"])).status_code in (403, 404)
    plan = [(alice, "of-alice", True), (bob, "of-bob", True), (alice, "of-bob", False), (bob, "of-alice", False)]
    answers = await asyncio.gather(*(act(at, group, "drop", who, places=["0:0"]) for who, group, _ in plan))
    for (_, group, may), answer in zip(plan, answers, strict=True):
        assert answer.status_code in ((200,) if may else (403, 404)), (group, answer.text)
    reader = await at.user("reader", "describe,consume of-alice.dlq")
    assert len(await letters(at, "of-alice", "?settled=true", headers=reader)) == 2
    refused = await act(at, "of-alice", "drop", reader, places=["0:1"])
    assert (refused.status_code, refused.json()["code"]) == (403, "UNAUTHORIZED")


async def test_two_callers_settle_only_what_is_theirs() -> None:
    async with world(rules=True) as at:
        await two_callers(at)


async def test_a_planted_shared_client_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_client(monkeypatch)
    async with world(rules=True) as at:
        with pytest.raises(AssertionError):
            await two_callers(at)
