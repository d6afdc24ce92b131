"""Records written over HTTP: each kind of body, validation as a whole, idempotency keys."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pyarrow as pa
import pytest

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.json_records import fields_of
from ledgermq_gateway.callers import Caller
from tests.gateway.world import World, world


def ipc(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def stored(at: World, topic: str, count: int) -> list[Any]:
    """Return the first messages of partition 0."""
    async with at.client() as client:
        consumer = client.consumer(topic, until_end=True)
        found = [message async for message in consumer]
    assert len(found) == count
    return found


async def test_json_is_stored_as_it_was_sent() -> None:
    async with world() as at:
        made = await at.http.post("/v1/topics", json={"name": "orders", "partitions": 1})
        assert made.status_code == 201, made.text
        body = (
            '{"records":[{"key":"table-7","value_json":{"n": 12345678901234567890123, "n":1.0},"tag":"eu",'
            '"headers":[{"key":"from","value":"web"},{"key":"raw","value_base64":"/w=="},{"key":"none","value":null}],'
            '"timestamp":"2026-11-28T12:10:46.589054Z"},{"value":null,"key_base64":"AAE="},{"value":"two coffees"}]}'
        )
        answer = await at.http.post(
            "/v1/topics/orders/records", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"results": [{"partition": 0, "offset": n} for n in range(3)]}
        assert answer.headers["cache-control"] == "no-store"
        first, second, third = await stored(at, "orders", 3)
        assert first.value == b'{"n": 12345678901234567890123, "n":1.0}'
        assert fields_of(first)["headers"] == [
            {"key": "from", "value": "web"},
            {"key": "raw", "value_base64": "/w=="},
            {"key": "none", "value": None},
        ]
        assert (first.key, first.tag, fields_of(first)["timestamp"]) == (
            b"table-7",
            "eu",
            "2026-11-28T12:10:46.589054Z",
        )
        assert (second.value, second.key) == (None, b"\0\1")
        assert third.value == b"two coffees"


async def test_lines_bytes_and_arrow() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        lines = b'{"value":"a"}\n\n{"value":"b","key":"k"}\n'
        answer = await at.http.post(
            "/v1/topics/t/records",
            content=gzip.compress(lines),
            headers={"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )
        assert [each["offset"] for each in answer.json()["results"]] == [0, 1], answer.text
        answer = await at.http.post(
            "/v1/topics/t/records",
            content=b"\xff\0raw",
            headers={
                "Content-Type": "application/octet-stream",
                "LedgerMQ-Key": "a%20key",
                "LedgerMQ-Tag": "eu",
                "LedgerMQ-Header-From": "w%C3%A9b",
            },
        )
        assert answer.json()["results"] == [{"partition": 0, "offset": 2}], answer.text
        table = pa.table({"value": ["c", "d"], "key": [b"x", None]})
        answer = await at.http.post(
            "/v1/topics/t/records",
            content=ipc(table),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert answer.status_code == 200, answer.text
        assert sum(run["count"] for run in answer.json()["runs"]) == 2
        found = await stored(at, "t", 5)
        assert [message.value for message in found] == [b"a", b"b", b"\xff\0raw", b"c", b"d"]
        assert (found[2].key, found[2].tag, found[2].headers) == (b"a key", "eu", (("from", "wéb".encode()),))


BAD = {
    "no value": b'{"records":[{"value":"good"},{"key":"a"}]}',
    "two values": b'{"records":[{"value":"good"},{"value":"a","value_json":1}]}',
    "two keys": b'{"records":[{"value":"good"},{"value":"a","key":"a","key_base64":"AA=="}]}',
    "unknown field": b'{"records":[{"value":"good"},{"value":"a","vallue":"b"}]}',
    "reserved header": b'{"records":[{"value":"good"},{"value":"a","headers":[{"key":"ledgermq.x","value":"x"}]}]}',
    "bad base64": b'{"records":[{"value":"good"},{"value_base64":"a"}]}',
    "lone surrogate": b'{"records":[{"value":"good"},{"value":"\\ud800"}]}',
    "no UTF-8": b'{"records":[{"value":"good"},{"value":"\xff"}]}',
    "no UTF-8 in raw JSON": b'{"records":[{"value":"good"},{"value_json":"\xff"}]}',
    "deep": b'{"records":[{"value":"good"},{"value_json":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "no zone": b'{"records":[{"value":"good"},{"value":"a","timestamp":"2026-11-28T12:10:46"}]}',
    "year 10000": b'{"records":[{"value":"good"},{"value":"a","timestamp_us":253402300800000000}]}',
    "huge integer": b'{"records":[{"value":"good"},{"value":"a","delay_ms":1e400}]}',
    "priority with partition": b'{"records":[{"value":"good"},{"value":"a","priority":1,"partition":0}]}',
    "delay and time": b'{"records":[{"value":"good"},{"value":"a","delay_ms":1,"timestamp_us":1}]}',
    "delay of two years": b'{"records":[{"value":"good"},{"value":"a","delay_ms":63072000000}]}',
    "time in two years": b'{"records":[{"value":"good"},{"value":"a","deliver_at":"2126-11-28T12:10:46Z"}]}',
    "trailing": b'{"records":[{"value":"good"}]} x',
    "no records": b'{"records":[]}',
    "empty": b"",
    "not JSON": b"value=good",
    "byte order mark": b'\xef\xbb\xbf{"records":[{"value":"good"}]}',
}


async def test_a_bad_record_is_400_and_nothing_of_its_request_is_stored() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for name, body in BAD.items():
            answer = await at.http.post(
                "/v1/topics/t/records", content=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 400, (name, answer.status_code, answer.text[:300])
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["instance"] == answer.headers["ledgermq-request-id"]
        too_large = json.dumps({"records": [{"value": "good"}, {"value": "x" * 1_100_000}]})
        answer = await at.http.post(
            "/v1/topics/t/records", content=too_large, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
        answer = await at.http.post(
            "/v1/topics/t/records", json={"records": [{"value": "good"}, {"value": "a", "partition": 1}]}
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_PARTITION")
        await stored(at, "t", 0)


async def test_arrow_that_grows_or_lies_is_refused() -> None:
    def stream(table: pa.Table, **options: Any) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue().to_pybytes())

    plain = pa.table({"value": ["a" * 100] * 10})
    bodies = {
        "compressed": stream(plain, compression="zstd"),
        "dictionary": stream(pa.table({"value": pa.array(["a" * 1000] * 10).dictionary_encode()})),
        "view": stream(pa.table({"value": pa.array(["a" * 1000] * 10, pa.string_view())})),
        "reserved header": stream(
            pa.table(
                {
                    "value": ["a"],
                    "headers": pa.array([[("ledgermq.priority", b"1")]], pa.map_(pa.string(), pa.binary())),
                }
            )
        ),
        "cut": stream(plain)[:-40],
        "other column": stream(pa.table({"value": ["a"], "nonsense": [1]})),
        "headers without a key": stream(pa.table({"value": ["a"], "headers": pa.array([[{"name": "a"}]])})),
        "a name that is no UTF-8": stream(pa.table({"value": ["a"], "headers": pa.array([[{"kez": "a"}]])})).replace(
            b"kez", b"k\xffz"
        ),
        "a column twice": stream(pa.Table.from_arrays([pa.array(["a"])] * 2, ["value", "value"])),
        "no stream": b"hello",
        "nothing": b"",
    }
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for name, body in bodies.items():
            answer = await at.http.post(
                "/v1/topics/t/records", content=body, headers={"Content-Type": "application/vnd.apache.arrow.stream"}
            )
            assert answer.status_code == 400, (name, answer.status_code, answer.text[:300])
        await stored(at, "t", 0)


async def test_a_free_name_is_404_and_no_topic_is_made() -> None:
    async with world(cluster={"auto_create_topics": True}) as at:
        answer = await at.http.post("/v1/topics/free/records", json={"records": [{"value": "a"}]})
        assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_TOPIC")
        assert (await at.http.get("/v1/topics")).json()["topics"] == []


async def test_a_key_stores_records_once_and_keys_of_two_principals_never_meet() -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "produce,consume,describe,create t")
        bob = await at.user("bob", "produce,consume,describe t")
        made = await at.http.post(
            "/v1/topics", json={"name": "t", "partitions": 1, "settings": {"dedup.window.ms": "10m"}}, headers=alice
        )
        assert made.status_code == 201, made.text

        async def post(who: dict[str, str], key: str, *values: str) -> Any:
            records = [{"value": value} for value in values]
            return await at.http.post(
                "/v1/topics/t/records", json={"records": records}, headers=who | {"Idempotency-Key": key}
            )

        first = await post(alice, "order-17", "a", "b")
        assert first.status_code == 200, first.text
        assert "idempotent-replayed" not in first.headers
        again = await post(alice, '"order-17"', "a", "b")
        assert again.headers["idempotent-replayed"] == "true"
        offsets = [each["offset"] for each in first.json()["results"]]
        assert again.json()["results"] == [{"partition": 0, "offset": n, "duplicate": True} for n in offsets]
        other = await post(bob, "order-17", "c")
        assert "duplicate" not in other.json()["results"][0], "the other principal's record is stored"
        beside = await post(alice, "order-17.0", "d")
        assert "duplicate" not in beside.json()["results"][0], "a key that ends like the number of a record"


async def test_a_key_with_another_body_is_refused_where_it_can_be_compared() -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "produce,consume,describe,create t")
        blind = await at.user("blind", "produce,describe t")
        settings = {"dedup.window.ms": "10m"}
        made = await at.http.post(
            "/v1/topics", json={"name": "t", "partitions": 1, "settings": settings}, headers=alice
        )
        assert made.status_code == 201, made.text

        async def post(who: dict[str, str], *records: Any, key: str = "order-17") -> Any:
            return await at.http.post(
                "/v1/topics/t/records", json={"records": list(records)}, headers=who | {"Idempotency-Key": key}
            )

        given = [
            {
                "value_json": {"n": 1},
                "key": "k",
                "tag": "eu",
                "headers": [{"key": "from", "value": "web"}],
                "ttl_ms": 60_000,
            },
            {"value": None, "key": "k"},
        ]
        for who in (alice, blind):
            assert (await post(who, *given)).status_code == 200
            again = await post(who, *given)
            assert (again.status_code, again.headers.get("idempotent-replayed")) == (200, "true"), again.text
        others = [
            [given[0] | {"value_json": {"n": 2}}, given[1]],
            [given[0] | {"tag": "us"}, given[1]],
            [given[0] | {"headers": []}, given[1]],
            [given[0], {"value": "x", "key": "k"}],
            [given[0], {"value": None, "key": "other"}],
        ]
        for other in others:
            answer = await post(alice, *other)
            assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED"), answer.text
            assert [each["duplicate"] for each in answer.json()["results"]] == [True, True]
            assert (await post(blind, *other)).headers["idempotent-replayed"] == "true", (
                "it may not read what it stored"
            )
        longer = await post(alice, {"value": "other"}, given[1], {"value": "third"})
        assert longer.status_code == 422
        assert [each.get("duplicate", False) for each in longer.json()["results"]] == [True, True, False]
        assert (await post(alice, {"value": "b"}, key="order-18")).status_code == 200
        assert (await post(alice, *given)).status_code == 200


async def test_a_key_is_refused_where_it_promises_nothing() -> None:
    async with world(keys_per_second_max=3) as at:
        await at.http.post("/v1/topics", json={"name": "plain", "partitions": 1})
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1, "settings": {"dedup.window.ms": 60000}})
        key = {"Idempotency-Key": "k"}

        async def post(topic: str, *records: Any, headers: Any = None) -> Any:
            return await at.http.post(f"/v1/topics/{topic}/records", json={"records": records}, headers=headers or key)

        for answer in (await post("plain", {"value": "a"}), await post("t", {"value": "a", "delay_ms": 5})):
            assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_NOT_AVAILABLE")
        for wrong in (
            await post("t", {"value": "a", "id": "x"}),
            await post("t", {"value": "a"}, headers={"Idempotency-Key": "a b"}),
        ):
            assert wrong.status_code == 400, wrong.text
        assert (await post("t", *[{"value": "a"}] * 5)).status_code == 200
        late = await post("t", {"value": "a"}, headers={"Idempotency-Key": "l"})
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) >= 1
        assert late.json()["retry_after_ms"] > 0
        assert (await at.http.post("/v1/topics/t/records", json={"records": [{"value": "b"}]})).status_code == 200


@pytest.mark.parametrize("kind", ["json", "arrow"])
async def test_the_look_up_of_the_topic_counts_in_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A call whose time is over stores nothing, as its program may have given up."""
    true = Caller.topic

    async def slow(self: Caller, name: str, *, anew: bool = False) -> TopicDescription:
        await asyncio.sleep(0.3)
        return await true(self, name, anew=anew)

    async with world(delivery_timeout_ms=200) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        monkeypatch.setattr(Caller, "topic", slow)
        if kind == "json":
            answer = await at.http.post("/v1/topics/t/records", json={"records": [{"value": "a"}, {"value": "b"}]})
            assert [result["error"]["code"] for result in answer.json()["results"]] == ["DEADLINE_EXCEEDED"] * 2
        else:
            body = ipc(pa.table({"value": ["a", "b"]}))
            answer = await at.http.post(
                "/v1/topics/t/records", content=body, headers={"Content-Type": "application/vnd.apache.arrow.stream"}
            )
        assert (answer.status_code, answer.json()["code"]) == (504, "DEADLINE_EXCEEDED"), answer.text
        await stored(at, "t", 0)


async def test_a_delayed_record_answers_a_handle() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        answer = await at.http.post(
            "/v1/topics/t/records", json={"records": [{"value": "later", "delay_ms": 3_600_000}]}
        )
        assert answer.status_code == 200, answer.text
        [result] = answer.json()["results"]
        assert "offset" not in result
        assert result["handle"]


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
async def test_a_body_without_its_type_is_415(content_type: str | None) -> None:
    async with world() as at:
        headers = {} if content_type is None else {"Content-Type": content_type}
        answer = await at.http.post("/v1/topics/t/records", content=b'{"records":[{"value":"a"}]}', headers=headers)
        assert answer.status_code == 415, answer.text
