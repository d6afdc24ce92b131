"""Ranges that a consumer reads by itself: only where the program allows it, believed by their
checksums, and nothing is ever lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from crc32c import crc32c

import ledgermq
from ledgermq.client.consuming.fetching import direct_reads
from ledgermq.client.consuming.fetching.direct_reads import CannotRead, DirectReads, ranges_of
from ledgermq.client.settings.declared import check_place
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import CorruptFrame, InvalidConfig
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame, Frame
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from tests.unit.client.hostile import ADDRESS, HostileBroker, encoded, fetched

A, B, C = encoded(b"a"), encoded(b"b"), encoded(b"c")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/segment").write_bytes(b"before" + A + B + b"between" + C)
    return tmp_path / "root"


def at(data: bytes, base: int, position: int, place: int = 1, crc: int | None = None) -> pb.FetchedBatch:
    found = crc32c(data) if crc is None else crc
    return pb.FetchedBatch(
        base_offset=base, record_count=1, length=len(data), crc=found, object=place, position=position
    )


def header(url: str, *batches: pb.FetchedBatch) -> pb.FetchHeader:
    part = pb.FetchedPartition(topic="t", topic_id=1, partition=0, high_watermark=10, batches=batches)
    return pb.FetchHeader(partitions=[part], objects=[url])


def all_of(url: str) -> pb.FetchHeader:
    first = len(b"before")
    third = first + len(A + B) + len(b"between")
    return header(url, at(A, 0, first), at(B, 1, first + len(A)), at(C, 2, third))


# -- places
# --------------------------------------------------------------------------------------------------------------


def test_neighbours_are_one_range() -> None:
    ranges = ranges_of(all_of("file:///x"))
    assert [(each.position, each.length) for each in ranges] == [(6, len(A + B)), (6 + len(A + B) + 7, len(C))]


def test_what_is_in_the_payload_is_no_range() -> None:
    assert ranges_of(fetched(A, count=1).header) == []


@pytest.mark.parametrize(
    "batches",
    [
        [at(A, 0, 0, place=2)],
        [at(A, 0, 2**63)],
        [at(A, 0, 2**64 - 1)],
        [pb.FetchedBatch(base_offset=0, record_count=1, length=FRAME_PAYLOAD_BYTES_MAX, object=1), at(A, 1, 0)],
    ],
)
def test_a_place_that_cannot_be_is_refused(batches: list[pb.FetchedBatch]) -> None:
    with pytest.raises(CorruptFrame):
        ranges_of(header("file:///x", *batches))


@pytest.mark.parametrize("place", ["", "file:///folder", "https://host/bucket/", "http://host:9000/bucket"])
def test_places_that_may_be_given(place: str) -> None:
    check_place("direct_reads", place)


@pytest.mark.parametrize(
    "place", ["/folder", "file://host/x", "s3://bucket", "https:///x", "ftp://h/x", "file:///x?y", "http://[/", True, 1]
)
def test_an_invalid_place_is_refused(place: str) -> None:
    with pytest.raises(InvalidConfig, match="direct_reads"):
        check_place("direct_reads", place)


# -- reading
# -------------------------------------------------------------------------------------------------------------


async def test_ranges_of_a_file_are_read_in_order(root: Path, pool: ThreadPoolExecutor) -> None:
    reads = DirectReads(root.as_uri(), pool)
    assert [bytes(piece) for piece in await reads.read(all_of((root / "segment").as_uri()))] == [A, B, C]


async def test_nothing_is_opened_outside_of_what_was_allowed(root: Path, pool: ThreadPoolExecutor) -> None:
    (root.parent / "rooted").write_bytes((root / "segment").read_bytes())
    reads = DirectReads(root.as_uri() + "/", pool)
    inside = root.as_uri()
    outside = [
        (root.parent / "rooted").as_uri(),
        f"{inside}/../rooted",
        f"{inside}/%2e%2e/rooted",
        f"{inside}",
        "http://host/x",
        "segment",
        "",
    ]
    for url in outside:
        with pytest.raises(CannotRead, match="not below"):
            await reads.read(all_of(url))


async def test_what_is_not_there_whole_and_as_named_is_not_believed(root: Path, pool: ThreadPoolExecutor) -> None:
    reads = DirectReads(root.as_uri(), pool)
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "short").write_bytes((root / "segment").read_bytes()[:-1])
    (root / "other").write_bytes(bytes(10_000))
    for name in ("pipe", "folder", "short", "other", "missing", "null%00byte"):
        with pytest.raises(CannotRead):
            await reads.read(all_of(f"{root.as_uri()}/{name}"))


class Answers(BaseHTTPRequestHandler):
    """Parts of the object; or whatever else the path says."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/object")
            self.end_headers()
            return
        data = b"before" + A + B + b"between" + C
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = data if self.path == "/whole" else data[first : last + 1]
        self.send_response({"/whole": 200, "/gone": 404, "/expired": 403}.get(self.path.partition("?")[0], 206))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_ranges_of_a_signed_url_are_read_and_no_other_answer_is_taken(
    server: str, pool: ThreadPoolExecutor
) -> None:
    reads = DirectReads(server, pool)
    assert [bytes(piece) for piece in await reads.read(all_of(f"{server}/object?signature=x"))] == [A, B, C]
    for path in ("whole", "gone", "expired?signature=secret", "moved"):
        with pytest.raises(CannotRead) as told:
            await reads.read(all_of(f"{server}/{path}"))
        assert "secret" not in str(told.value)


class NeverBegins(Executor):
    """Threads that are all busy."""

    def submit(self, *_: object, **__: object) -> Future[Any]:  # type: ignore[override]
        return Future()


async def test_a_read_that_takes_too_long_does_not_show_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_reads, "READ_S_MAX", 0.01)
    with pytest.raises(CannotRead, match="http://host/object was not read within") as told:
        await DirectReads("http://host", NeverBegins()).read(all_of("http://host/object?signature=secret"))
    assert "secret" not in str(told.value)


async def test_a_server_that_is_not_there_cannot_be_read(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(CannotRead):
        await DirectReads("http://127.0.0.1:9", pool).read(all_of("http://127.0.0.1:9/object"))


# -- a consumer
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(pool: ThreadPoolExecutor) -> AsyncIterator[tuple[HostileBroker, ledgermq.Client]]:
    broker = HostileBroker()
    settings = ClientSettings(timeout_s=5, attempt_timeout_s=2, backoff_ms_first=1)
    async with ledgermq.Client(broker, [ADDRESS], settings, threads=pool) as client:
        yield broker, client


def located(url: str) -> FetchFrame:
    return Frame(all_of(url), [])


async def read(consumer: ledgermq.Consumer, count: int) -> list[tuple[int, bytes | None]]:
    async with asyncio.timeout(30):
        messages = [await anext(consumer) for _ in range(count)]
    return [(message.offset, message.value) for message in messages]


async def test_a_consumer_hands_out_what_it_read_by_itself(
    client: tuple[HostileBroker, ledgermq.Client], root: Path
) -> None:
    broker, made = client
    broker.fetches = [[located((root / "segment").as_uri()), fetched(encoded(b"d"), count=1, base=3)]]
    consumer = made.consumer("t", partitions=[0], direct_reads=root.as_uri())
    assert await read(consumer, 4) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert [request.direct for request in broker.requests] == [True]


@pytest.mark.parametrize("name", ["missing", "other", "../elsewhere"])
async def test_what_it_cannot_read_it_asks_the_broker_for(
    client: tuple[HostileBroker, ledgermq.Client], root: Path, name: str
) -> None:
    broker, made = client
    (root / "other").write_bytes(bytes(10_000))
    first = fetched(encoded(b"z"), count=1)
    for batch in (bad := all_of(f"{root.as_uri()}/{name}")).partitions[0].batches:
        batch.base_offset += 1
    rest = [fetched(encoded(value), count=1, base=base) for base, value in ((1, b"a"), (2, b"b"), (3, b"c"))]
    broker.fetches = [[first, Frame(bad, [])], rest]
    consumer = made.consumer("t", partitions=[0], direct_reads=root.as_uri())
    assert await read(consumer, 4) == [(0, b"z"), (1, b"a"), (2, b"b"), (3, b"c")]
    assert [(request.direct, request.partitions[0].offset) for request in broker.requests] == [(True, 0), (False, 1)]


async def test_a_place_that_the_client_did_not_ask_for_is_refused(
    client: tuple[HostileBroker, ledgermq.Client], root: Path
) -> None:
    broker, made = client
    broker.fetches = [[located((root / "segment").as_uri())], [fetched(A, count=1)]]
    consumer = made.consumer("t", partitions=[0])
    with pytest.raises(CorruptFrame, match="or locations that differ"):
        await consumer.fetch(timeout=10)
    assert await read(consumer, 1) == [(0, b"a")]
    assert not any(request.direct for request in broker.requests)


async def test_a_place_that_cannot_be_is_told_to_the_program(
    client: tuple[HostileBroker, ledgermq.Client], root: Path
) -> None:
    broker, made = client
    broker.fetches = [
        [Frame(header((root / "segment").as_uri(), at(A, 0, 6, place=7)), [])],
        [located((root / "segment").as_uri())],
    ]
    consumer = made.consumer("t", partitions=[0], direct_reads=root.as_uri())
    with pytest.raises(CorruptFrame, match="object 7"):
        await consumer.fetch(timeout=10)
    assert await read(consumer, 3) == [(0, b"a"), (1, b"b"), (2, b"c")]
