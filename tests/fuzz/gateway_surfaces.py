"""What the HTTP gateway takes from strangers: bodies, cursors, targets, and whole requests on a real port.

A refusal is a `Problem` below 500, or one that says to come again; everything else is a failure. In whole requests a
gateway that fails says so in its log: no line of an error may come.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import httpx
import pyarrow as pa

from ledgermq_gateway.api.route import Routes, check_query
from ledgermq_gateway.api.table import table
from ledgermq_gateway.http.call import ARROW, JSON, NDJSON, OCTETS
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import path_of, query_of
from ledgermq_gateway.records.bodies import records_of_json, records_of_lines, table_of_arrow
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, parse_cursor
from tests.fuzz.surface import Surface, Untyped
from tests.gateway.world import World, world
from tests.worlds.batches import mutate

NOW_US = 1_790_000_000_000_000
RECORDS_MAX = 10_000
INPUTS_A_GATEWAY = 2_000
HEALTH_EVERY, HEALTH_TRIES, HEALTH_PAUSE_S = 100, 5, 1.0
ANSWER_S = 120.0
"""An answer comes sooner on the slowest machine. Requests that lack their end are cut off by the gateway's settings."""
ALONE = {"Connection": "close"}
QUICK = {"header_timeout_ms": 100, "body_timeout_ms": 100, "keepalive_ms": 100, "wait_ms_max": 20, "streams_max": 50}

RECORDS = (
    (
        b'{"records":[{"key":"table-7","value_json":{"n":12345678901234567890123,"n":1.0},"tag":"eu","headers":[{"key":'
        b'"a","value":"b"},{"key":"raw","value_base64":"/w=="}],"timestamp":"2026-11-28T12:10:46.589054Z"}]}'
    ),
    b'{"records":[{"value":null,"key_base64":"AAE=","ttl_ms":5,"id":"x"},{"value":"two","delay_ms":60000}]}',
    b'{"records":[{"value":"x","deliver_at":"2026-11-28T12:10:46Z","partition":1,"timestamp_us":-5}]}',
)
CURSORS = tuple(
    cursor_of(topic_id, offsets).encode()
    for topic_id, offsets in (
        (7, {0: 5, 3: 2**40}),
        (2**63 - 1, {}),
        (1, {number: number for number in range(PARTITIONS_MAX)}),
    )
)
ROUTES = Routes(table(lambda: True, "1"))
NAMES = {"{topic}": "kept", "{partition}": "0", "{group}": "workers", "{offset}": "1", "{handle}": "lmq1.AAAA"}
LONG = ("/events", "/download")
"""Answers of these go on; a part of one is enough."""


def _lines() -> list[bytes]:
    return [
        b"\n".join(json.dumps(record).encode() for record in json.loads(body)["records"]) + b"\n" for body in RECORDS
    ]


def _ipc() -> list[bytes]:
    headers = pa.array([[("a", b"b")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    found = []
    for columns in ({"value": [b"a", None], "key": ["x", "y"], "headers": headers}, {"value": pa.array(["c", "d"])}):
        sink = pa.BufferOutputStream()
        rows = pa.table(columns)
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        found.append(sink.getvalue().to_pybytes())
    return found


def _checked(status: int, code: str) -> None:
    if status == 500:
        raise Untyped(f"a caller's input was answered as a fault of the gateway: {code}")


def check_json(data: bytes) -> None:
    with _refusals():
        records_of_json(data, NOW_US, RECORDS_MAX)


def check_lines(data: bytes) -> None:
    with _refusals():
        records_of_lines(data, NOW_US, RECORDS_MAX)


def check_arrow(data: bytes) -> None:
    with _refusals():
        table_of_arrow(data, RECORDS_MAX).to_pylist()


class _refusals(suppress):  # noqa: N801  # used as a block
    """Let a refusal pass, unless it calls the input a fault of the gateway."""

    def __init__(self) -> None:
        super().__init__(Problem)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Problem):
            _checked(error.status, error.code)
        return super().__exit__(kind, error, trace)  # type: ignore[arg-type]  # a traceback


def check_cursor(data: bytes) -> None:
    with _refusals():
        topic_id, offsets = parse_cursor(data.decode("latin-1"))
        if parse_cursor(cursor_of(topic_id, offsets)) != (topic_id, offsets):
            raise Untyped("a cursor that was accepted is another one when it is made again")


def check_target(data: bytes) -> None:
    """input: METHOD SP target"""
    method, _, target = data.decode("latin-1").partition(" ")
    with _refusals():
        path, query = path_of(target)
        if any(sign in path for sign in ("%", "//", "\\", "/../", "/./")):
            raise Untyped("a path that proxies read differently was accepted")
        route, names = ROUTES.find(method, path)
        if any("/" in name or not name for name in names.values()):
            raise Untyped("a name of a path has a slash, or is empty")
        check_query(route, query_of(query))


def _targets() -> list[tuple[str, str]]:
    """Return method and path of each route, with names in it, and a query with each parameter."""
    found = []
    for route in ROUTES.table:
        path = route.path
        for name, value in NAMES.items():
            path = path.replace(name, value)
        path = path.replace("{", "").replace("}", "")
        wanted = [each.name for each in route.parameters if each.place == "query"]
        found.append((route.method, path))
        found += [(route.method, f"{path}?{name}=1") for name in wanted]
    return found


def _requests() -> list[bytes]:
    bodies: dict[str, list[tuple[str, bytes]]] = {
        "/records": [
            *((JSON, body) for body in RECORDS),
            *((NDJSON, body) for body in _lines()),
            *((ARROW, body) for body in _ipc()),
            (OCTETS, b"\0raw"),
        ],
        "/v1/transactions": [(JSON, b'{"as":"a","records":[{"topic":"kept","value":"1"}]}')],
        "/leases": [(JSON, b'{"topics":["kept"],"max":5,"wait_ms":1,"lease_ms":1000,"filter":"a"}')],
        "/answers": [(JSON, b'{"answers":[{"handle":"lmq1.AAAA","word":"nack","delay_ms":5,"error":"x"}]}')],
        "/offsets": [(JSON, b'{"epoch":0,"offsets":[{"topic":"kept","partition":0,"offset":1}]}')],
        "/reset": [(JSON, b'{"topics":["kept"],"to":"earliest","dry_run":true}')],
        "/redrive": [(JSON, b'{"places":["0:0"],"dry_run":true}')],
        "/v1/topics": [(JSON, b'{"name":"made","partitions":2,"settings":{"retention.ms":"1h"}}')],
        "/v1/topics/kept": [(JSON, b'{"partitions":3,"set":{"retention.ms":"1h"}}')],
    }
    found = []
    for method, target in _targets():
        if (method, target.partition("?")[0]) == ("DELETE", "/v1/topics/kept"):
            continue
        if method == "GET":
            found.append(_request(method, target, (), b""))
            continue
        path = target.partition("?")[0]
        fitting = next((given for end, given in bodies.items() if path.endswith(end)), [(JSON, b"{}")])
        found += [_request(method, target, (("Content-Type", kind),), body) for kind, body in fitting]
    keyed = (("Content-Type", OCTETS), ("LedgerMQ-Key", "a%20b"), ("LedgerMQ-Tag", "eu"), ("LedgerMQ-Header-X", "%ff"))
    found.append(_request("POST", "/v1/topics/kept/records", (*keyed, ("Idempotency-Key", "k")), b"raw"))
    packed = (("Content-Type", JSON), ("Content-Encoding", "gzip"))
    found.append(_request("POST", "/v1/topics/kept/records", packed, gzip.compress(RECORDS[0], mtime=0)))
    last = (("Last-Event-ID", CURSORS[0].decode()), ("Accept", "text/event-stream"))
    found.append(_request("GET", "/v1/topics/kept/events", last, b""))
    return found


def _request(method: str, target: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def spoil_request(rng: random.Random, data: bytes) -> bytes:
    """Mostly, spoil one part, and let the length of the body fit."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    chance = rng.random()
    if chance < 0.1:
        return mutate(rng, data, data)
    if chance < 0.5 and body:
        body = mutate(rng, body, body)
    elif chance < 0.75:
        lines[0] = mutate(rng, lines[0], body or lines[-1])
    else:
        at = rng.randrange(1, len(lines))
        lines[at] = mutate(rng, lines[at], lines[0])
    if rng.random() < 0.9:
        lines = [b"Content-Length: %d" % len(body) if line.startswith(b"Content-Length") else line for line in lines]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()}: {error!r}")


class Requested:
    """A gateway before a broker, and a topic that no input deletes. Made by the first input."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._at: World | None = None
        self._served = 0
        self._errors = _Errors()

    def serve(self, data: bytes) -> None:
        self._runner.run(self._serve(data))

    def close(self) -> None:
        logging.getLogger("ledgermq.gateway").removeHandler(self._errors)
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _serve(self, data: bytes) -> None:
        at = self._at
        if at is None or self._served % INPUTS_A_GATEWAY == 0:
            await self._stack.aclose()
            made: World = await self._stack.enter_async_context(world(**QUICK))
            at = self._at = made
            await _tried(self._make_topic, at)
            logging.getLogger("ledgermq.gateway").addHandler(self._errors)
        self._served += 1
        self._errors.found.clear()
        await self._asked(at, data)
        if self._served % HEALTH_EVERY == 0:
            await _tried(self._check_client, at)
        if self._errors.found:
            raise Untyped(f"the gateway failed: {self._errors.found[0]}")

    async def _asked(self, at: World, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=2**20)
        goes_on = any(end.encode() in data.partition(b"\r\n")[0] for end in LONG)
        try:
            writer.write(data)
            async with asyncio.timeout(ANSWER_S):
                with suppress(ConnectionError):
                    answer = await reader.read(2**16)
                    while not goes_on and (more := await reader.read(2**16)):
                        answer = (answer + more)[: 2**16]
        except TimeoutError:
            raise Untyped("a request was neither answered nor cut off") from None
        finally:
            writer.transport.abort()

    async def _make_topic(self, at: World) -> None:
        made = await at.http.post("/v1/topics", json={"name": "kept", "partitions": 2}, headers=ALONE)
        if made.status_code not in (201, 409):  # 409: the answer to the attempt before was lost
            raise Untyped(f"no topic was made: {made.status_code} {made.text[:300]}")

    async def _check_client(self, at: World) -> None:
        value = f"healthy {self._served}"
        records = {"records": [{"value": value, "partition": 0}]}
        stored = await at.http.post("/v1/topics/kept/records", json=records, headers=ALONE)
        if stored.status_code != 200:
            raise Untyped(f"the next client was not served: {stored.status_code} {stored.text[:300]}")
        place = stored.json()["results"][0]["offset"]
        path = f"/v1/topics/kept/partitions/0/records?from={place}&limit=1&values=text"
        page = await at.http.get(path, headers=ALONE)
        if [record["value"] for record in page.json()["records"]] != [value]:
            raise Untyped("a record that was acknowledged is not read back")
        if at.gateway.service.streams.count > 5:
            raise Untyped("streams of readers that left are still counted")


async def _tried(call: Callable[[World], Awaitable[None]], at: World) -> None:
    """Call as a client that is to be served. It comes on other connections: the gateway ends those that rest, and
    those that need a tenth of a second for their header, which a busy machine does.
    """
    for left in reversed(range(HEALTH_TRIES)):
        try:
            await call(at)
            break
        except httpx.TransportError:
            if not left:
                raise
            await asyncio.sleep(HEALTH_PAUSE_S)


def surfaces() -> list[Surface]:
    requested = Requested()
    return [
        Surface("http-json", RECORDS, check_json),
        Surface("http-lines", _lines(), check_lines),
        Surface("http-arrow", _ipc(), check_arrow),
        Surface("http-cursor", CURSORS, check_cursor),
        Surface("http-target", [f"{method} {target}".encode() for method, target in _targets()], check_target),
        Surface("http-request", _requests(), requested.serve, spoil_request, weight=0.2, close=requested.close),
    ]
