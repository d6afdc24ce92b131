"""What a caller learns of names that it may not see: nothing, by any answer; and several callers on one connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ledgermq.errors import Unauthorized
from tests.gateway.world import World, world

RULES = ("produce,consume,create,alter,delete mine*", "group mine*", "transaction mine*")
NAMES = ("secret", "gone", "swept", "never")
"""A topic, one that is deleted and can come back, one that is deleted for good, and one that never was."""
RECORD: dict[str, Any] = {"value": "a"}


def requests_for(name: str) -> list[tuple[str, str, Any]]:
    topic, group, unresolved = f"/v1/topics/{name}", f"/v1/groups/{name}", f"/v1/unresolved/{name}"
    return [
        ("POST", f"{topic}/undelete", None),
        ("GET", topic, None),
        ("DELETE", topic, None),
        ("DELETE", f"{topic}?now=true", None),
        ("DELETE", f"{topic}?topic_id=3", None),
        ("PATCH", topic, {"partitions": 9}),
        ("POST", "/v1/topics", {"name": name, "partitions": 1}),
        ("GET", f"{topic}/records?from=earliest", None),
        ("GET", f"{topic}/partitions/7/records?from=earliest", None),
        ("GET", f"{topic}/events?from=earliest", None),
        ("GET", f"{topic}/find?key=a", None),
        ("GET", f"{topic}/offsets", None),
        ("DELETE", f"{topic}/records?before=latest&partition=7", None),
        ("POST", f"{topic}/records", {"records": [RECORD]}),
        ("POST", f"{topic}/records", {"records": [RECORD | {"partition": 7}]}),
        ("POST", f"{topic}/records", {"records": [RECORD | {"delay_ms": 1000}]}),
        ("GET", f"/v1/messages/trace?id={name}:0:0", None),
        ("GET", f"/v1/delayed?topic={name}", None),
        ("POST", "/v1/transactions", {"as": "mine", "records": [RECORD | {"topic": name}]}),
        ("POST", "/v1/transactions", {"as": "mine", "records": [RECORD | {"topic": name, "partition": 7}]}),
        ("POST", "/v1/transactions", {"as": name, "records": [RECORD | {"topic": "mine"}]}),
        ("POST", "/v1/queues/mine/leases", {"topics": [name], "wait_ms": 500}),
        ("POST", f"/v1/queues/{name}/leases", {"topics": ["mine"], "wait_ms": 500}),
        ("GET", f"/v1/queues/{name}", None),
        ("POST", "/v1/groups/mine/reset", {"to": "earliest", "topics": [name]}),
        ("PUT", "/v1/groups/mine/offsets", {"epoch": 0, "offsets": [{"topic": name, "partition": 0, "offset": 0}]}),
        ("GET", group, None),
        ("GET", f"{group}/offsets", None),
        ("GET", f"{group}/dead-letters", None),
        ("POST", f"{group}/dead-letters/drop", {"all": True}),
        ("POST", "/v1/groups/mine/dead-letters/redrive", {"all": True, "to": name}),
        ("GET", unresolved, None),
        ("POST", f"{unresolved}/commit", {"ids": ["a"]}),
        ("GET", f"{unresolved}/message?id=a", None),
        ("GET", f"/v1/access/test?operation=consume&name={name}", None),
        ("GET", f"/v1/access/test?operation=consume&name={name}&principal=user:root", None),
    ]


async def answers(at: World, who: dict[str, str], name: str) -> list[str]:
    """Each as one text, in which the name and the id of the request do not count."""
    found = []
    for method, path, body in requests_for(name):
        answer = await at.http.request(method, path, json=body, headers=who)
        document = {each: value for each, value in answer.json().items() if each != "instance"}
        found.append(f"{answer.status_code} {json.dumps(document)}".replace(name, "NAME"))
    return found


async def test_no_answer_tells_a_hidden_name_from_one_that_never_was() -> None:
    """Deleted topics can be brought back, so their names are kept: undelete and create do not show that either, nor
    does an append under a condition.
    """
    async with world(rules=True) as at:
        root, mallory = await at.user("root"), await at.user("mallory", *RULES)
        for name in NAMES[:3]:
            made = await at.http.post("/v1/topics", json={"name": name, "partitions": 1}, headers=root)
            assert made.status_code == 201
        assert (await at.http.delete("/v1/topics/gone", headers=root)).status_code == 204
        assert (await at.http.delete("/v1/topics/swept?now=true", headers=root)).status_code == 204
        found = {name: await answers(at, mallory, name) for name in NAMES}
        for name in NAMES[:3]:
            assert found[name] == found["never"]
        async with at.client(mallory["Authorization"].removeprefix("Bearer ")) as client, client.producer() as producer:
            texts = set()
            for name in NAMES:
                for end in (0, 1):
                    with pytest.raises(Unauthorized) as refused:
                        await producer.send(name, b"x", partition=0, expect_end=end)
                    texts.add(refused.value.message.replace(name, "NAME"))
        assert len(texts) == 1, texts


async def test_callers_on_one_connection_stay_apart() -> None:
    """A proxy sends requests of several callers on one connection, and one right behind the other."""
    async with world(rules=True) as at:
        alice, bob = await at.user("alice", "create,describe of-alice"), await at.user("bob", "create,describe of-bob")
        for who, name in ((alice, "of-alice"), (bob, "of-bob")):
            assert (await at.http.post("/v1/topics", json={"name": name, "partitions": 1}, headers=who)).is_success

        def listing(who: dict[str, str] | None, *more: str) -> str:
            lines = ["GET /v1/topics HTTP/1.1", "Host: a", "X-Forwarded-For: 10.0.0.1", *more]
            return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in (who or {}).items()), "", ""])

        sent = listing(alice) + listing(bob) + listing(None) + listing(alice, "Connection: close")
        body = (await raw_until_end(at, sent.encode())).split(b"HTTP/1.1 ")[1:]
        assert [part[:3] for part in body] == [b"200", b"200", b"401", b"200"]
        names = [[name for name in (b"of-alice", b"of-bob") if name in part] for part in body]
        assert names == [[b"of-alice"], [b"of-bob"], [], [b"of-alice"]]


async def raw_until_end(at: World, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(request)
    async with asyncio.timeout(60):
        found = await reader.read()
    writer.close()
    return found
