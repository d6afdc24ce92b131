"""Credentials of callers: passed on, never mixed, never those of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import ledgermq
from ledgermq.client.producing.producer import Producer
from ledgermq.sources import Sources
from ledgermq_gateway import callers, commands
from ledgermq_gateway.callers import NO_TOKEN, Caller, Callers
from tests.broker.access import token
from tests.gateway.world import World, world

Headers = dict[str, str]


async def post(at: World, who: Headers, topic: str, value: str) -> Any:
    return await at.http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value}]}, headers=who)


async def two_callers(at: World) -> None:
    """Two callers on one gateway, each with its own topic, at the same time. Raises AssertionError where anything of
    one reaches the other.
    """
    alice = await at.user("alice", "produce,consume,describe,create of-alice")
    bob = await at.user("bob", "produce,consume,describe,create of-bob")
    for who, topic in ((alice, "of-alice"), (bob, "of-bob")):
        made = await at.http.post("/v1/topics", json={"name": topic, "partitions": 1}, headers=who)
        assert made.status_code == 201, made.text
    plan = [(alice, "of-alice", 200), (bob, "of-bob", 200), (alice, "of-bob", 403), (bob, "of-alice", 403)] * 5
    answers = await asyncio.gather(*(post(at, who, topic, topic) for who, topic, _ in plan))
    for (_, topic, wanted), answer in zip(plan, answers, strict=True):
        assert answer.status_code in ((wanted, 404) if wanted == 403 else (wanted,)), (topic, wanted, answer.text)
    described = await asyncio.gather(
        *(at.http.get(f"/v1/topics/{topic}", headers=who) for who, topic, _ in plan),
    )
    for (_, topic, wanted), answer in zip(plan, described, strict=True):
        assert (answer.status_code == 200) == (wanted == 200), (topic, answer.text)
    for who, topic in ((alice, "of-alice"), (bob, "of-bob")):
        found = (await at.http.get("/v1/topics", headers=who)).json()["topics"]
        assert [each["name"] for each in found] == [topic]


async def test_nothing_crosses_between_two_callers() -> None:
    async with world(rules=True) as at:
        await two_callers(at)


def shared_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Producer] = []
    own = Caller.producer.fget
    assert own is not None

    def producer(self: Caller) -> Producer:
        if not made:
            made.append(own(self))
        return made[0]

    monkeypatch.setattr(Caller, "producer", property(producer))


def shared_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {}
    own = Caller.topic

    async def topic(self: Caller, name: str, *, anew: bool = False) -> Any:
        if name not in known:
            known[name] = await own(self, name)
        return known[name]

    monkeypatch.setattr(Caller, "topic", topic)


def shared_client(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Callers._admit
    made: list[Caller] = []

    async def admit(self: Callers, digest: bytes, secret: str) -> Caller:
        made.append(await own(self, digest, secret))
        self._callers[digest] = made[0]
        return made[0]

    monkeypatch.setattr(Callers, "_admit", admit)


@pytest.mark.parametrize("bug", [shared_producer, shared_routing, shared_client], ids=lambda bug: bug.__name__)
async def test_a_planted_bug_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    async with world(rules=True) as at:
        with pytest.raises(AssertionError):
            await two_callers(at)


@pytest.mark.parametrize(
    "header", [None, "Basic YWxpY2U6eA==", "LedgerMQ-Broker x", "Bearer", "Bearer a b", "Bearer wrong"]
)
async def test_no_credential_that_counts_is_401(header: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(rules=True) as at:
        monkeypatch.setenv("LEDGERMQ_TOKEN", (await token(at.cluster, "root")).text)  # type: ignore[arg-type]  # brokers only
        answer = await at.http.get("/v1/topics", headers={} if header is None else {"Authorization": header})
        assert answer.status_code == 401, answer.text
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "wrong" not in answer.json()["detail"].split()[-1]


async def test_a_gateway_sends_the_callers_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own LEDGERMQ_TOKEN is not looked for, and a caller without one sends one: brokers take a call without any
    for the owner of the certificate.
    """
    monkeypatch.setenv("LEDGERMQ_TOKEN", "the-gateways-own")
    async with commands.cluster_client("127.0.0.1:1", Sources()) as client:
        for secret in ("of-alice", NO_TOKEN):
            async with client.as_caller(secret) as view:
                assert view._connections.at("127.0.0.1:1").credential() == f"Bearer {secret}"


async def test_a_revoked_token_ends_alone() -> None:
    """Alice's call starts look-ups and a producer; her token is revoked; bob goes on, and she is refused."""
    async with world(rules=True) as at:
        root = await at.user("root")
        alice = await at.user("alice", "produce,describe,create shared")
        bob = await at.user("bob", "produce,describe shared")
        await at.http.post("/v1/topics", json={"name": "shared", "partitions": 1}, headers=alice)
        assert (await post(at, alice, "shared", "a")).status_code == 200
        assert (await post(at, bob, "shared", "b")).status_code == 200
        async with at.client(root["Authorization"].removeprefix("Bearer ")) as client:
            mine = [each for each in await client.access.list_tokens() if each.user == "alice"]
            await client.access.revoke_token(mine[0].token_id)
        assert (await at.http.get("/v1/topics", headers=alice)).status_code == 401
        assert (await post(at, bob, "shared", "c")).status_code == 200
        refused = await post(at, alice, "shared", "d")
        assert refused.status_code == 401, refused.text


async def test_wrong_tokens_take_no_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of wrong tokens enter nothing, each is asked about once in five seconds, and few at a time."""
    async with world(rules=True, callers_max=3) as at:
        alice = await at.user("alice", "describe t")
        assert (await at.http.get("/v1/topics", headers=alice)).status_code == 200
        asked, at_once = [0, 0], [0]
        own = ledgermq.client.admin.access.Access.test

        async def counted(self: Any, *given: Any, **named: Any) -> Any:
            asked[0] += 1
            at_once[0] += 1
            asked[1] = max(asked[1], at_once[0])
            try:
                return await own(self, *given, **named)
            finally:
                at_once[0] -= 1

        monkeypatch.setattr("ledgermq.client.admin.access.Access.test", counted)
        monkeypatch.setattr(callers, "REFUSED_S", 600.0)
        wrong = [{"Authorization": f"Bearer wrong-{number}"} for number in range(60)]
        answers = await asyncio.gather(*(at.http.get("/v1/topics", headers=each) for each in wrong + wrong))
        assert {answer.status_code for answer in answers} == {401}
        assert asked[0] <= len(wrong) + 10, "a repeated one is answered from memory, also while it is asked about"
        assert asked[1] <= callers.ADMISSIONS_MAX + 1
        assert len(at.gateway.callers) == 1
        assert (await at.http.get("/v1/topics", headers=alice)).status_code == 200


async def test_limits_are_of_principals_not_of_tokens() -> None:
    async with world(rules=True, callers_per_principal_max=2) as at:
        held = [await at.user("alice", "describe t") for _ in range(5)]
        for who in held:
            assert (await at.http.get("/v1/topics", headers=who)).status_code == 200
        assert len(at.gateway.callers) == 2


async def test_open_brokers_share_one_caller_until_rules_come() -> None:
    async with world() as at:
        for header in ("Bearer a", "Bearer b"):
            assert (await at.http.get("/v1/topics", headers={"Authorization": header})).status_code == 200
        assert len(at.gateway.callers) == 1


async def test_idle_callers_are_closed_and_come_back() -> None:
    async with world(rules=True, caller_idle_ms=200) as at:
        alice = await at.user("alice", "produce,describe,create t")
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=alice)
        assert (await post(at, alice, "t", "a")).status_code == 200
        async with asyncio.timeout(20):
            while len(at.gateway.callers):
                await asyncio.sleep(0.05)
        assert (await post(at, alice, "t", "b")).status_code == 200


async def test_credentials_that_were_not_admitted_travel_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers break connections whose calls are refused again and again."""
    async with world(rules=True) as at:
        alice = await at.user("alice", "describe t")
        travelled = []
        own = at.gateway.callers._connect
        monkeypatch.setattr(at.gateway.callers, "_connect", lambda secret: travelled.append(secret) or own(secret))
        for number in range(5):
            wrong = {"Authorization": f"Bearer wrong-{number}"}
            assert (await at.http.get("/v1/topics", headers=wrong)).status_code == 401
        assert (await at.http.get("/v1/topics", headers=alice)).status_code == 200
        assert travelled == [alice["Authorization"].removeprefix("Bearer ")]


async def test_tokens_that_open_brokers_admit_are_bounded() -> None:
    """Each token of a stranger was remembered for as long as any call came."""
    async with world(callers_max=5) as at:
        for number in range(20):
            answer = await at.http.get("/v1/topics", headers={"Authorization": f"Bearer drawn-{number}"})
            assert answer.status_code == 200
        assert len(at.gateway.callers._callers) <= 5
