"""Transactions over HTTP: all topics or none, keys that are repeated at any gateway, rights, limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ledgermq.client.transactions.once import SentOnce
from ledgermq.client.transactions.transactions import TransactionClient
from ledgermq.errors import TransactionOutcomeUnknown
from tests.gateway.test_leases import second_gateway
from tests.gateway.world import World, world

PAID: dict[str, Any] = {"topic": "paid", "value": "9"}
BODY: dict[str, Any] = {"as": "shop", "records": [PAID, {"topic": "mail", "value_json": {"n": 9}}]}
OFFSET: dict[str, Any] = {"group": "billing", "topic": "paid", "partition": 0, "offset": 0}
RULES = ("produce,consume paid", "produce,consume mail", "transaction shop.*")


async def topics(at: World, **more: Any) -> None:
    for name in ("paid", "mail"):
        made = await at.http.post("/v1/topics", json={"name": name, "partitions": 1}, **more)
        assert made.status_code == 201, made.text


async def seen(at: World, count: int, **more: Any) -> list[tuple[str, str]]:
    """Wait until both topics have so many records, and return all."""
    async with asyncio.timeout(30):
        while True:
            found = []
            for name in ("paid", "mail"):
                page = await at.http.get(f"/v1/topics/{name}/records?from=earliest&values=text", **more)
                found += [(name, record["value"]) for record in page.json()["records"]]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def test_all_records_are_written() -> None:
    async with world(brokers=2) as at:
        await topics(at)
        answer = await at.http.post("/v1/transactions", json=BODY)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["state"], found["replayed"]) == ("committed", False)
        assert found["transaction"].startswith("shop.r.")
        assert await seen(at, 2) == [("paid", "9"), ("mail", '{"n":9}')]
        listed = (await at.http.get("/v1/transactions?all=true")).json()["transactions"]
        assert [each["state"] for each in listed] == ["committed"]


async def test_a_key_is_recognized_at_any_gateway() -> None:
    async with world() as at, second_gateway(at) as other:
        await topics(at)
        key = {"Idempotency-Key": "invoice-9"}
        answers = [await http.post("/v1/transactions", json=BODY, headers=key) for http in (at.http, other, at.http)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [answer.json()["replayed"] for answer in answers] == [False, True, True]
        assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]
        beside = await at.http.post("/v1/transactions", json=BODY | {"as": "shop.k"}, headers=key)
        assert not beside.json()["replayed"]
        assert len(await seen(at, 4)) == 4


async def test_a_key_with_another_body_is_refused_at_any_gateway() -> None:
    async with world() as at, second_gateway(at) as other:
        await topics(at)
        key = {"Idempotency-Key": "invoice-9"}
        assert (await at.http.post("/v1/transactions", json=BODY, headers=key)).status_code == 200
        spaced = json.dumps(dict(reversed(BODY.items())), separators=(",", ":")).encode()
        typed = key | {"Content-Type": "application/json"}
        assert (await other.post("/v1/transactions", content=spaced, headers=typed)).json()["replayed"]
        for change in (
            {"records": BODY["records"][:1]},
            {"records": [PAID, {"topic": "mail", "value_json": {"n": 10}}]},
            {"records": [PAID | {"tag": "eu"}, BODY["records"][1]]},
            {"offsets": [OFFSET]},
        ):
            for http in (at.http, other):
                answer = await http.post("/v1/transactions", json=BODY | change, headers=key)
                assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED"), answer.text
                assert answer.json()["retriable"] is False
        assert len(await seen(at, 2)) == 2


async def test_offsets_are_committed_with_the_records_for_one_of_two_readers() -> None:
    async with world(brokers=2) as at, second_gateway(at) as other:
        await topics(at)
        for number in range(5):
            await at.http.post("/v1/topics/paid/records", json={"records": [{"value": str(number)}]})
        body = {"as": "shop", "records": [{"topic": "mail", "value": "0-2"}]}
        first = body | {"offsets": [OFFSET | {"offset": 3, "expect": None}]}
        answer = await at.http.post("/v1/transactions", json=first, headers={"Idempotency-Key": "0"})
        assert answer.status_code == 200, answer.text
        offsets = (await other.get("/v1/groups/billing/offsets")).json()["offsets"]
        assert [(each["topic"], each["partition"], each["offset"]) for each in offsets] == [("paid", 0, 3)]
        late = await other.post("/v1/transactions", json=first, headers={"Idempotency-Key": "twin"})
        assert (late.status_code, late.json()["code"]) == (409, "STALE_ASSIGNMENT"), late.text
        assert "has committed offset 3 of paid/0, not 0" in late.json()["detail"]
        lower = body | {"offsets": [OFFSET | {"offset": 2}]}
        back = await other.post("/v1/transactions", json=lower)
        assert (back.status_code, back.json()["code"]) == (409, "COMMIT_GOES_BACK"), back.text
        only = {"as": "shop", "offsets": [OFFSET | {"offset": 5, "expect": 3}]}
        assert (await other.post("/v1/transactions", json=only)).status_code == 200
        assert (await at.http.post("/v1/transactions", json=first, headers={"Idempotency-Key": "0"})).json()["replayed"]
        async with at.client() as client, client.consumer("paid", group="billing") as consumer:
            await consumer.fetch(1, timeout=1)
            refused = await at.http.post("/v1/transactions", json=only | {"offsets": [OFFSET | {"offset": 5}]})
            assert (refused.status_code, refused.json()["code"]) == (409, "GROUP_NOT_EMPTY"), refused.text
        mails = (await at.http.get("/v1/topics/mail/records?from=earliest&values=text")).json()["records"]
        assert [record["value"] for record in mails] == ["0-2"]


async def test_offsets_need_the_rights_of_a_commit() -> None:
    async with world(rules=True) as at:
        root = await at.user("root")
        await topics(at, headers=root)
        body = {"as": "shop", "records": [PAID], "offsets": [OFFSET]}
        alice = await at.user("alice", *RULES)
        answer = await at.http.post("/v1/transactions", json=body, headers=alice)
        assert (answer.status_code, answer.json()["code"]) == (403, "UNAUTHORIZED"), answer.text
        bob = await at.user("bob", *RULES, "group billing", "describe paid")
        answer = await at.http.post("/v1/transactions", json=body, headers=bob)
        assert answer.status_code == 200, answer.text
        assert len(await seen(at, 1, headers=root)) == 1


async def test_two_requests_with_one_key_at_a_time() -> None:
    async with world(transactions_per_second_max=50) as at, second_gateway(at) as other:
        await topics(at)
        key = {"Idempotency-Key": "k"}
        answers = await asyncio.gather(
            *(http.post("/v1/transactions", json=BODY, headers=key) for http in (at.http, other) * 4)
        )
        for answer in answers:
            if answer.status_code != 200:
                assert answer.status_code in (409, 429, 503), answer.text
                assert answer.json()["retriable"]
        assert (await at.http.post("/v1/transactions", json=BODY, headers=key)).status_code == 200
        await asyncio.sleep(1)
        assert len(await seen(at, 2)) == 2


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"records": []}, 400, "INVALID_REQUEST"),
        ({"as": "a b"}, 400, "INVALID_REQUEST"),
        ({"as": None}, 400, "INVALID_REQUEST"),
        ({"records": [PAID, {"topic": "nothing", "value": "9"}]}, 404, "UNKNOWN_TOPIC"),
        ({"records": [PAID, {"topic": "mail", "value": "9", "partition": 5}]}, 404, "UNKNOWN_PARTITION"),
        ({"records": [PAID, {"topic": "mail"}]}, 400, "INVALID_RECORD"),
        ({"records": [{"value": "9"}]}, 400, "INVALID_REQUEST"),
        ({"records": [PAID | {"id": "x"}]}, 400, "INVALID_REQUEST"),
        ({"records": [PAID, {"topic": "mail", "value": "9" * 2_000_000}]}, 413, "MESSAGE_TOO_LARGE"),
        ({"records": [PAID, {"topic": "__transactions", "value": "9"}]}, None, None),
        ({"offsets": [{"topic": "paid", "partition": 0, "offset": 1}]}, 400, "INVALID_REQUEST"),
        ({"offsets": [OFFSET | {"offset": -1}]}, 400, "INVALID_REQUEST"),
        ({"offsets": [OFFSET | {"epoch": 1}]}, 400, "INVALID_REQUEST"),
        ({"offsets": [OFFSET, OFFSET]}, 400, "INVALID_REQUEST"),
        ({"offsets": [OFFSET | {"topic": "nothing"}]}, 404, "UNKNOWN_TOPIC"),
        ({"offsets": [OFFSET | {"partition": 7}]}, 404, "UNKNOWN_PARTITION"),
        ({"offsets": [OFFSET | {"topic_id": 2**40}]}, 409, "OTHER_TOPIC"),
        ({"offsets": [OFFSET | {"offset": 99}]}, 416, "OFFSET_OUT_OF_RANGE"),
        ({"offsets": [OFFSET | {"expect": 3}]}, 409, "STALE_ASSIGNMENT"),
    ],
)  # fmt: skip
async def test_what_is_refused_has_written_nothing(change: Any, status: int | None, code: str | None) -> None:
    async with world() as at:
        await topics(at)
        for key in ({}, {"Idempotency-Key": "k"}):
            answer = await at.http.post("/v1/transactions", json=BODY | change, headers=key)
            assert 400 <= answer.status_code < 500, answer.text
            if status is not None:
                assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        again = await at.http.post("/v1/transactions", json=BODY, headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.json()["replayed"]) == (200, False)
        assert len(await seen(at, 2)) == 2


async def test_rights_decide_before_anything_is_written() -> None:
    async with world(rules=True) as at:
        root, alice, bob = await at.user("root"), await at.user("alice", *RULES), await at.user("bob", *RULES)
        await topics(at, headers=root)
        half = await at.user("half", "produce paid", "transaction shop.*")
        none = await at.user("none", *RULES[:2])
        for who in (half, none):
            answer = await at.http.post("/v1/transactions", json=BODY, headers=who)
            assert (answer.status_code, answer.json()["code"]) == (403, "UNAUTHORIZED"), answer.text
        key = {"Idempotency-Key": "invoice-9"}
        for who in (alice, bob):
            answer = await at.http.post("/v1/transactions", json=BODY, headers=who | key)
            assert answer.json()["replayed"] is False, "keys of two principals never meet"
        assert len(await seen(at, 4, headers=root)) == 4


async def test_a_principal_writes_so_many_in_a_second() -> None:
    async with world(transactions_per_second_max=2) as at:
        await topics(at)
        answers = await asyncio.gather(*(at.http.post("/v1/transactions", json=BODY) for _ in range(8)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) >= 4
        assert {answer.json()["code"] for answer in refused} == {"TOO_MANY_TRANSACTIONS"}
        assert len(await seen(at, 2 * (8 - len(refused)))) == 2 * (8 - len(refused))


async def test_an_unknown_outcome_is_told_and_the_key_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    true = TransactionClient.send_once

    async def cut(self: TransactionClient, *given: Any, **named: Any) -> SentOnce:
        monkeypatch.setattr(TransactionClient, "send_once", true)
        await true(self, *given, **named)
        raise TransactionOutcomeUnknown("it may or may not be committed, because the coordinator did not answer")

    async with world() as at:
        await topics(at)
        monkeypatch.setattr(TransactionClient, "send_once", cut)
        key = {"Idempotency-Key": "k"}
        answer = await at.http.post("/v1/transactions", json=BODY, headers=key)
        assert (answer.status_code, answer.json()["code"]) == (500, "TRANSACTION_OUTCOME_UNKNOWN")
        assert (await at.http.post("/v1/transactions", json=BODY, headers=key)).json()["replayed"]
        assert len(await seen(at, 2)) == 2
