"""What a broker takes poisons no reader: a batch of any bytes is refused, or every reader gets the
same rows of it forever.

An input is a few batches. Those that are acknowledged are read as a consumer does, printed as the
command line does, taken to Parquet by a whole round, read again by fetch and by a plain reader of
Parquet, and searched by time; then fsck has to find the root clean.
"""

from __future__ import annotations

import asyncio
import io
import random
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.cli.messages.formats import MessageFormat, formatter
from ledgermq.client.consuming.message import decode_run, messages_of
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, timestamps_of
from ledgermq.protocol.frames import Frame
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, batch_header, cluster_of, fetch_of
from tests.fuzz.surface import Surface, Untyped
from tests.fuzz.wire_surfaces import DECODED_BYTES_MAX, batch_seeds, spoil_batch
from tests.virtual_time import VirtualLoop, virtual_sources
from tests.worlds.batches import batch_of, mutate, serialize
from tests.worlds.roots import parquet_keys

BATCHES = 6
INPUTS_PER_ROOT = 10
"""Then a new root: what fsck reads must not grow forever."""
BROKER = "a:1"
_LENGTH = struct.Struct("<I")
FORMATTERS = [formatter(form, width)[1] for form in MessageFormat for width in (0, 80)]


def pack(batches: list[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(data)) + data for data in batches)


def unpack(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(data):
        end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        yield data[at + _LENGTH.size : end]
        at = end


@cache
def single_seeds() -> list[bytes]:
    edges = [-62_135_596_800_000_000, 253_402_300_799_999_999, 0, -1, 253_402_300_800_000_000, 2**63 - 1, -(2**63)]
    odd: list[dict[str, object]] = [
        {"key": b"", "value": b"", "tag": "", "headers": []},
        {"headers": [{"key": None, "value": None}, {"key": "", "value": b""}]},
        {"value": b"\0\xff\xfe", "tag": "\0\n\u2028\U0010ffff", "timestampType": -(2**31)},
        {"timestampType": 2**31 - 1, "key": b"\x1b[31m"},
    ]
    return [*batch_seeds(), *(serialize(batch_of([{"timestamp": edge}])) for edge in edges), serialize(batch_of(odd))]


def seeds() -> list[bytes]:
    found = single_seeds()
    return [pack(found[at : at + BATCHES]) for at in range(0, len(found), BATCHES)]


def spoil(rng: random.Random, data: bytes) -> bytes:
    del data
    chosen = rng.choices(single_seeds(), k=BATCHES)
    batches = [spoil_batch(rng, each) if rng.random() < 0.8 else each for each in chosen]
    return mutate(rng, pack(batches), batches[0]) if rng.random() < 0.05 else pack(batches)


class RoundTrip:
    """A broker and a topic, made anew for every few inputs."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None
        self._inputs = 0
        self._expected: list[pa.RecordBatch] = []

    def check(self, data: bytes) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._runner.run(self._check(data))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self._stack.aclose())
            self._runner.close()
            self._runner = None

    async def _check(self, data: bytes) -> None:
        if self._cluster is None or self._inputs % INPUTS_PER_ROOT == 0:
            await self._stack.aclose()
            self._cluster = await self._stack.enter_async_context(cluster_of(BROKER, bundles=2))
            await self._cluster.create("t", 1)
            self._expected = []
        self._inputs += 1
        cluster = self._cluster
        before = sum(batch.num_rows for batch in self._expected)
        refused = [error for batch in unpack(data) if (error := await self._offer(cluster, batch)) is not None]
        taken = pa.Table.from_batches(self._expected, SCHEMA)
        await _same(cluster, taken.slice(before), before)
        await _compact(cluster)
        await _same(cluster, taken.slice(before), before)
        await _searched(cluster, taken)
        await _plain_readers_see(cluster, taken)
        await _clean(cluster)
        if refused and len(refused) == len(list(unpack(data))):
            raise refused[0]

    async def _offer(self, cluster: Cluster, data: bytes) -> Exception | None:
        """The typed error of a batch that is refused; any other error is a failure."""
        from ledgermq.protocol.status import error_from_proto

        try:
            rows = decode_batch(data, DECODED_BYTES_MAX)
        except Exception:
            rows = None
        header = batch_header("t", 0, data, rows.num_rows if rows is not None else 1)
        [result] = (await cluster.line(BROKER).produce_once(Frame(pb.ProduceHeader(batches=[header]), [data]))).results
        if result.HasField("error"):
            error = error_from_proto(result.error)
            if error.code == "INTERNAL":
                raise Untyped(f"a batch was answered {error!r}")
            return error
        if rows is None:
            raise Untyped("a broker accepted a batch that cannot be decoded")
        self._expected.append(rows)
        return None


async def _same(cluster: Cluster, expected: pa.Table, first: int) -> None:
    """What a consumer reads from offset `first` on, validated and printed, is what was taken."""
    found: list[pa.RecordBatch] = []
    offset = first
    while offset < first + expected.num_rows:
        frame = await cluster.line(BROKER).fetch_once(fetch_of("t", 0, offset))
        payload = memoryview(b"".join(frame.payload))
        at = 0
        [part] = frame.header.partitions
        if part.HasField("error") or not part.batches:
            raise Untyped(f"offset {offset} of {first + expected.num_rows} is not read: {part}")
        for batch in part.batches:
            rows = decode_run(payload[at : at + batch.length], batch.crc, batch.record_count, DECODED_BYTES_MAX, "here")
            at += batch.length
            skip = max(0, offset - batch.base_offset)
            found.append(rows.slice(skip))
            offset = batch.base_offset + batch.record_count
            _print_all(rows, batch.base_offset)
    if not pa.Table.from_batches(found, SCHEMA).equals(expected):
        raise Untyped(f"the records from offset {first} on are read as others")


def _print_all(rows: pa.RecordBatch, base_offset: int) -> None:
    for message in messages_of(rows.slice(0, 50), "t", 0, base_offset):
        _ = message.timestamp
        for form in FORMATTERS:
            form(message)


async def _compact(cluster: Cluster) -> None:
    report = await compact_root(cluster.store, virtual_sources(7), LocalEngine(virtual_sources(8), run_inline))
    failed = [file for done in report.rounds for file in done.parked]
    if report.failures or failed or report.not_collected:
        raise Untyped(f"an accepted record poisoned a compaction: {report.failures or failed or report.not_collected}")


async def _searched(cluster: Cluster, taken: pa.Table) -> None:
    """The first record at or after each of some times."""
    times = taken.column("timestamp").cast(pa.int64()).to_pylist()
    known = sorted({time for time in times if time is not None})
    for wanted in {known[0], known[-1], known[len(known) // 2]} if known else ():
        query = pb.OffsetQuery(topic="t", partition=0, timestamp_us=wanted)
        [found] = (await cluster.line(BROKER).list_offsets(pb.ListOffsetsRequest(queries=[query]))).results
        first = next(at for at, time in enumerate(times) if time is not None and time >= wanted)
        if found.HasField("error") or found.offset != first:
            raise Untyped(f"time {wanted} is found at {found.offset}, it is at {first}: {found.error}")


async def _plain_readers_see(cluster: Cluster, taken: pa.Table) -> None:
    """All of it, once, in Parquet, with what Spark needs: times that a calendar holds."""
    files = [key for key in await parquet_keys(cluster.store) if "_tmp" not in key]
    tables = [pq.read_table(io.BytesIO(await cluster.store.get(key))) for key in files]
    if not tables:
        if taken.num_rows:
            raise Untyped("what was taken is not in Parquet")
        return
    table = pa.concat_tables(tables)
    if table.column("offset").to_pylist() != list(range(taken.num_rows)):
        raise Untyped("offsets in Parquet are not dense")
    if not table.select(SCHEMA.names).cast(SCHEMA).equals(taken):
        raise Untyped("plain readers see other records than were taken")
    for batch in table.select(SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches():
        timestamps_of(batch)
    table.to_pylist()


async def _clean(cluster: Cluster) -> None:
    checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
    wrong = [problem for problem in checked.problems if problem.severity is not Severity.NOTE]
    if wrong:
        raise Untyped(f"fsck of what a broker took: {wrong[:3]}")


def surfaces() -> list[Surface]:
    trip = RoundTrip()
    return [Surface("round-trip", seeds(), trip.check, spoil, weight=0.3, close=trip.close)]
