"""Values at and beyond the ends of their types: refused as the caller's fault, never a failure of the gateway."""

from __future__ import annotations

import pytest

from tests.gateway.world import raw, status_of, world

DIGITS = "9" * 5_000
FAR, FARTHER = 2**63, 2**64 - 1
PATHS = [
    f"/v1/topics/t/partitions/{DIGITS}/records?from=earliest",
    "/v1/topics/t/partitions/4294967296/records?from=earliest",
    f"/v1/topics/t/partitions/0/records?from={FAR}",
    f"/v1/topics/t/partitions/0/records?from={FARTHER}",
    f"/v1/topics/t/partitions/0/records?from={DIGITS}",
    f"/v1/topics/t/records?from={DIGITS}d",
    "/v1/topics/t/records?from=0001-01-01T00:00:00%2B14:00",
    "/v1/topics/t/records?from=9999-12-31T23:59:59-14:00",
    f"/v1/topics/t/offsets?at={DIGITS}s",
    f"/v1/groups/g/dead-letters/{DIGITS}/1",
    f"/v1/groups/g/dead-letters/1/{DIGITS}",
    f"/v1/groups/g/dead-letters/999999999999999999/{'9' * 18}",
    f"/v1/messages/trace?id=t:{DIGITS}:0",
    f"/v1/messages/trace?id=t:0:{FARTHER}",
    f"/v1/messages/trace?id=t:{FAR}:0",
    f"/v1/messages/trace?id=t:0:{'9' * 40}",
    f"/v1/topics/t/find?key=a&from={DIGITS}d",
    f"/v1/delayed?topic=t&partition={2**31 - 1}",
]
BODIES = [
    ("PUT", "/v1/groups/g/offsets", '{"epoch":0,"offsets":[{"topic":"t","partition":%d,"offset":0}]}'),
    ("PUT", "/v1/groups/g/offsets", '{"epoch":0,"offsets":[{"topic":"t","partition":0,"offset":%d}]}'),
    ("PUT", "/v1/groups/g/offsets", '{"epoch":0,"offsets":[{"topic":"t","partition":0,"offset":0,"topic_id":%d}]}'),
    ("PUT", "/v1/groups/g/offsets", '{"epoch":%d,"offsets":[{"topic":"t","partition":0,"offset":0}]}'),
    ("POST", "/v1/groups/g/reset", '{"to":%d,"topics":["t"]}'),
    ("POST", "/v1/groups/g/reset", '{"to":"earliest","topics":["t"],"partition":%d}'),
    ("POST", "/v1/topics/t/records", '{"records":[{"value":"a","partition":%d}]}'),
    ("POST", "/v1/topics/t/records", '{"records":[{"value":"a","timestamp_us":%d}]}'),
    ("POST", "/v1/topics/t/records", '{"records":[{"value":"a","ttl_ms":%d}]}'),
    ("POST", "/v1/topics/t/records", '{"records":[{"value":"a","delay_ms":%d}]}'),
]
TIMES = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")


async def test_no_number_of_a_request_fails_the_gateway() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for path in PATHS:
            answer = await at.http.get(path)
            assert answer.status_code < 500, (path[:60], answer.text)
        for method, path, body in BODIES:
            for number in (2**31, 2**53, FAR, FARTHER):
                json = {"Content-Type": "application/json"}
                answer = await at.http.request(method, path, content=body % number, headers=json)
                assert answer.status_code < 500, (path, body % number, answer.text)
        for time in TIMES:
            for field in ("timestamp", "deliver_at"):
                answer = await at.http.post("/v1/topics/t/records", json={"records": [{"value": "a", field: time}]})
                assert answer.status_code < 500, (field, time, answer.text)
            letters = {"all": True, "dry_run": True, "since": time, "before": time}
            assert (await at.http.post("/v1/groups/g/dead-letters/drop", json=letters)).status_code < 500


@pytest.mark.parametrize(
    "name",
    [
        "LedgerMQ-Key",
        "LedgerMQ-Tag",
        "LedgerMQ-Header-x",
        "Idempotency-Key",
        "Accept",
        "Origin",
        "Cookie",
        "User-Agent",
    ],
)
async def test_no_bytes_of_a_header_fail_the_gateway(name: str) -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for value in (b"\xff\xfe", b"%ff%00", b"\xc3\xa9", b"\xed\xa0\x80"):
            lines = [b"POST /v1/topics/t/records HTTP/1.1", b"Host: a", b"Connection: close", b"Content-Length: 1"]
            lines += [b"Content-Type: application/octet-stream", name.encode() + b": " + value]
            answer = await raw(at.port, b"\r\n".join([*lines, b"", b"x"]))
            assert status_of(answer) < 500, (value, answer)
