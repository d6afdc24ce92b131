"""The order of one key's records over a connection, from a caller's first request on."""

from __future__ import annotations

import asyncio

import msgspec

from tests.gateway.world import world

REQUESTS = 20


def post(number: int) -> bytes:
    body = msgspec.json.encode({"records": [{"key": "k", "value": f"{number}.{part}"} for part in range(3)]})
    head = [
        "POST /v1/topics/t/records HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


async def test_pipelined_requests_of_one_key_are_stored_in_their_order() -> None:
    """All are in the connection before the first one is answered: 20 requests, while the caller is admitted, its
    producer opens, and the topic is looked up.
    """
    async with world(brokers=2) as at:
        made = await at.http.post("/v1/topics", json={"name": "t", "partitions": 8})
        assert made.status_code == 201, made.text
        at.gateway.callers._forget(next(iter(at.gateway.callers._callers.values())))
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"".join(map(post, range(REQUESTS))))
        async with asyncio.timeout(60):
            for number in range(REQUESTS):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), (number, head)
                [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
                await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
        page = (await at.http.get("/v1/topics/t/records?from=earliest&limit=100")).json()
        wanted = [f"{number}.{part}" for number in range(REQUESTS) for part in range(3)]
        assert [record["value"] for record in page["records"]] == wanted
        assert len({record["partition"] for record in page["records"]}) == 1
