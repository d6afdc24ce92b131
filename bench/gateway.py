"""G1 to G7: the HTTP gateway, a separate process before one broker on local files with fsync.

The client is the measuring process, and shares the cores with gateway and broker; the processor time is the gateway's
alone. Requests come on 32 connections, each of which sends the next one when it has its answer; G7 sends one after the
other. G1 posts one record of 1 KB in each request, and sends the same records by the SDK for comparison, 32 at once. G2
posts 100 records as JSON. G3 posts 1 MB as Arrow, beside `send_batch`. G4 reads pages of 1,000 records. In G5 500
listeners take 100 records a second for five seconds. G6 leases and acknowledges 50 messages a call. G7 writes three
records in a transaction, with fsync.

The floors are processes, too, which take turns with the gateway before the same broker (`bench/bare_gateway.py`):
aiohttp that answers a POST and does nothing else; aiohttp and the SDK that store it, without rules, turns, limits and a
log; aiohttp that passes on, not decoded, the bytes that it has fetched by a bare gRPC call, a record for each 1,000 B.
A gateway cannot take less than the first and the last. The one that stores is what a small program takes with the same
libraries. G6 is compared with leases and answers by the SDK in the measuring process.

Webdis before Redis Streams, which syncs before any answer, gets the same requests in G1, G4 (JSON) and G6, in the same
round, before the gateway starts; its processor time is without that of Redis. It passes commands on as they come, and
knows no callers. Its stream has one partition. NATS has no HTTP for its streams.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import aiohttp
import pyarrow as pa

import ledgermq
from bench import bare_gateway, http_peer
from bench.http_load import (
    CONNECTIONS,
    LEASE,
    LEASE_CPU,
    LEASED,
    PAGE,
    PAGE_OF,
    POST,
    POST_CPU,
    POST_P99,
    VALUE_BYTES,
    Served,
    many,
    ok,
    timed,
)
from bench.measures import Results
from bench.ours import Cluster, rss_bytes_of
from bench.peers import webdis
from bench.percentiles import at
from tests.waiting import wait_until

GATEWAY, SDK = "gateway", "SDK"
ANSWERS, SENDS, PASSES = "bare aiohttp", "aiohttp and the SDK", "aiohttp and bare gRPC"
PARTITIONS = 8
LISTENERS, LISTENED_S, LISTENED_PER_S = 500, 5.0, 100
LEASE_WAIT_S = 1
ARROW = bare_gateway.ARROW
OPTIONS = (
    "--streams-max=2000",
    "--streams-per-principal-max=2000",
    "--transactions-per-second-max=100000",
    "--keys-per-second-max=1000000",
)


@contextmanager
def gateway_of(folder: Path, target: str, *more: str) -> Iterator[Served]:
    """Run a gateway with its defaults and `more` options, but without bounds of a principal: all are one here."""
    log = folder / "gateway.log"
    command = [sys.executable, "-m", "ledgermq.cli.main", "gateway", "--target", target, "--port", "0", *OPTIONS, *more]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: "gateway listens" in log.read_text() or process.poll() is not None)
        found = re.search(r"http://127.0.0.1:\d+", log.read_text())
        if found is None:
            raise RuntimeError(f"the gateway did not start: {log.read_text()}")
        yield Served(found[0], process.pid)
    finally:
        process.kill()
        process.wait()


@contextmanager
def floor(*arguments: str) -> Iterator[Served]:
    """Run a server that does only a part of a gateway's work (`bare_gateway`)."""
    with bare_gateway.served(*arguments) as (url, pid):
        yield Served(url, pid)


Measured = Callable[["Rounds", Cluster, Served, aiohttp.ClientSession], Awaitable[None]]


class Rounds:
    """Measure one row. `scale`: share of the records. `peers`: those whose name has this in it, "" = all; None:
    none.
    """

    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None = None) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale
        self._peer = peers is not None and peers.lower() in webdis.SUBJECT.lower()

    def run(self, row: str) -> None:
        measure = ROWS[row]
        for _ in range(self._rounds):
            if self._peer and row in http_peer.ROWS:
                self._measure_peer(row)
            with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
                folder = Path(name)
                (folder / "root").mkdir()
                with (
                    closing(Cluster(folder, (folder / "root").as_uri(), 1)) as cluster,
                    gateway_of(folder, cluster.brokers.addresses) as gateway,
                ):
                    asyncio.run(self._with_session(measure, cluster, gateway))

    def _measure_peer(self, row: str) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, webdis.running(Path(name)) as peer:
            for what, unit, value in asyncio.run(http_peer.measured(row, peer, self.count)):
                self.add(row, what, unit, value, webdis.SUBJECT)

    async def _with_session(self, measure: Measured, cluster: Cluster, gateway: Served) -> None:
        connector = aiohttp.TCPConnector(limit=LISTENERS + CONNECTIONS)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
        async with aiohttp.ClientSession(gateway.url, connector=connector, timeout=timeout) as http:
            await measure(self, cluster, gateway, http)

    def add(self, row: str, what: str, unit: str, value: float, subject: str = GATEWAY) -> None:
        self._results.add(row, what, subject, unit, value)

    def count(self, most: int) -> int:
        return max(1, int(most * self._scale))


async def one_record(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, count = cluster.new_topic(PARTITIONS), rounds.count(5_000)
    body, headers = b"x" * VALUE_BYTES, {"Content-Type": "application/octet-stream"}
    path = f"/v1/topics/{topic}/records"

    async def posts(subject: str, one: Served) -> None:
        took_s, cpu_s, took = await timed(one, count, lambda: ok(http.post(one.url + path, data=body, headers=headers)))
        rounds.add("G1", POST_CPU, "µs", 1e6 * cpu_s / count, subject)
        rounds.add("G1", POST, "requests/s", count / took_s, subject)
        if subject != ANSWERS:
            rounds.add("G1", POST_P99, "ms", at(sorted(took), 0.99), subject)

    await posts(GATEWAY, gateway)
    with floor(bare_gateway.ANSWERS) as one:
        await posts(ANSWERS, one)
    with floor(bare_gateway.SENDS, cluster.brokers.addresses, topic) as one:
        await posts(SENDS, one)
    async with ledgermq.connect(cluster.brokers.addresses) as client, client.producer() as producer:

        async def send() -> None:
            await producer.send(topic, body)

        await many(2 * CONNECTIONS, send)
        rounds.add("G1", POST_P99, "ms", at(sorted(await many(count, send)), 0.99), SDK)


async def many_records(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, count = cluster.new_topic(PARTITIONS), rounds.count(500)
    body = {"records": [{"value": "x" * VALUE_BYTES} for _ in range(100)]}
    path = f"/v1/topics/{topic}/records"
    with floor(bare_gateway.SENDS, cluster.brokers.addresses, topic) as other:
        for subject, one in ((GATEWAY, gateway), (SENDS, other)):
            url = one.url + path
            took_s, cpu_s, _ = await timed(one, count, lambda url=url: ok(http.post(url, json=body)))  # type: ignore[misc]
            rounds.add("G2", "POST 100 × 1 KB", "records/s", 100 * count / took_s, subject)
            rounds.add("G2", "POST 100 × 1 KB, CPU of a record", "µs", 1e6 * cpu_s / count / 100, subject)


async def arrow(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, count = cluster.new_topic(PARTITIONS), rounds.count(100)
    rows = pa.table({"value": pa.array([b"x" * VALUE_BYTES] * 1_000, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body, headers = sink.getvalue().to_pybytes(), {"Content-Type": ARROW}
    path = f"/v1/topics/{topic}/records"

    async def posts(subject: str, one: Served) -> None:
        took_s, cpu_s, _ = await timed(one, count, lambda: ok(http.post(one.url + path, data=body, headers=headers)))
        rounds.add("G3", "1 MB of 1 KB records", "records/s", rows.num_rows * count / took_s, subject)
        rounds.add("G3", "1 MB of 1 KB records, CPU", "ms/MB", 1e3 * cpu_s / count, subject)

    await posts(GATEWAY, gateway)
    with floor(bare_gateway.ANSWERS) as one:
        await posts(ANSWERS, one)
    with floor(bare_gateway.SENDS, cluster.brokers.addresses, topic) as one:
        await posts(SENDS, one)
    async with ledgermq.connect(cluster.brokers.addresses) as client, client.producer() as producer:

        async def send() -> None:
            await (await producer.send_batch(topic, rows))

        await many(CONNECTIONS, send)
        begun_s = time.perf_counter()
        await many(count, send)
        rate = rows.num_rows * count / (time.perf_counter() - begun_s)
        rounds.add("G3", "1 MB of 1 KB records", "records/s", rate, SDK)


async def pages(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic = cluster.new_topic(1)
    await asyncio.to_thread(cluster.client, "produce", topic, records=PAGE, value_bytes=VALUE_BYTES, via="send_batch")
    path = f"/v1/topics/{topic}/partitions/0/records?from=earliest&values=text&limit={PAGE}"

    async def gets(subject: str, one: Served, name: str, accept: str, most: int) -> None:
        count, headers = rounds.count(most), {"Accept": accept}
        page = await ok(http.get(one.url + path, headers=headers))
        records = count * (PAGE if subject == GATEWAY else len(page) / VALUE_BYTES)
        took_s, cpu_s, _ = await timed(one, count, lambda: ok(http.get(one.url + path, headers=headers)))
        rounds.add("G4", f"{PAGE_OF}, {name}", "records/s", records / took_s, subject)
        rounds.add("G4", f"{PAGE_OF}, {name}, CPU of a record", "µs", 1e6 * cpu_s / records, subject)

    await gets(GATEWAY, gateway, "JSON", "application/json", 100)
    await gets(GATEWAY, gateway, "Arrow", ARROW, 500)
    with floor(bare_gateway.PASSES, cluster.brokers.addresses, topic) as other:
        await gets(PASSES, other, "Arrow", ARROW, 500)


async def listeners(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, before = cluster.new_topic(1), rss_bytes_of(gateway.pid)
    got = [0] * LISTENERS

    async def listen(number: int) -> None:
        async with http.get(f"/v1/topics/{topic}/events?from=latest", headers={"Accept": "text/event-stream"}) as found:
            async for line in found.content:
                got[number] += line.startswith(b"data:")

    tasks = [asyncio.create_task(listen(number)) for number in range(LISTENERS)]
    async with ledgermq.connect(cluster.brokers.addresses) as client, client.producer() as producer:
        while min(got) == 0:  # all are there once each has seen a record
            await producer.send(topic, b"x" * VALUE_BYTES)
            await asyncio.sleep(0.2)
            for task in tasks:
                if task.done():
                    task.result()
        seconds = LISTENED_S * rounds.count(100) / 100
        before_got, cpu_s, begun_s = sum(got), gateway.cpu_s, time.perf_counter()
        sent = 0
        while (passed_s := time.perf_counter() - begun_s) < seconds:
            if sent < passed_s * LISTENED_PER_S:
                producer.send(topic, b"x" * VALUE_BYTES)
                sent += 1
            else:
                await asyncio.sleep(0.002)
        await producer.flush()
        while sum(got) - before_got < sent * LISTENERS and time.perf_counter() - begun_s < 3 * seconds:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        took_s = time.perf_counter() - begun_s
        rounds.add("G5", "500 listeners, 100 records/s", "of a core", (gateway.cpu_s - cpu_s) / took_s)
        rounds.add("G5", "events that came", "events/s", (sum(got) - before_got) / took_s)
        held = (rss_bytes_of(gateway.pid) - before) / LISTENERS
        rounds.add("G5", "memory of a listener", "KiB", held / 1024)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Lease = Callable[[], Awaitable[int]]
"""Leases messages and acknowledges them; returns how many there were."""


async def leases(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, records = cluster.new_topic(PARTITIONS), rounds.count(25_000)
    given = {"records": records, "value_bytes": VALUE_BYTES, "via": "send_batch"}
    await asyncio.to_thread(lambda: cluster.client("produce", topic, **given))
    wanted = {"topics": [topic], "max": LEASED, "wait_ms": 1000 * LEASE_WAIT_S}

    async def over_http() -> int:
        leased = await (await http.post("/v1/queues/workers/leases", json=wanted)).json()
        if leased["messages"]:
            answers = {"answers": [{"handle": each["handle"]} for each in leased["messages"]]}
            await ok(http.post("/v1/queues/workers/answers", json=answers))
        return len(leased["messages"])

    cpu_s = gateway.cpu_s
    done, took_s = await _drained(over_http)
    rounds.add("G6", LEASE, "messages/s", done / took_s)
    rounds.add("G6", LEASE_CPU, "µs", 1e6 * (gateway.cpu_s - cpu_s) / done)
    async with ledgermq.connect(cluster.brokers.addresses) as client:

        async def by_the_sdk() -> int:
            leased = await client.queues.lease(topic, "others", max_records=LEASED, wait=LEASE_WAIT_S)
            if leased:
                await client.queues.answer([ledgermq.LeaseAnswer(each.handle) for each in leased])
            return len(leased)

        done, took_s = await _drained(by_the_sdk)
        rounds.add("G6", LEASE, "messages/s", done / took_s, SDK)


async def _drained(lease: Lease) -> tuple[int, float]:
    """Return how many messages were handled until none was left, and the seconds that it took."""
    done = 0

    async def work() -> None:
        nonlocal done
        while count := await lease():
            done += count

    begun_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return done, time.perf_counter() - begun_s - LEASE_WAIT_S  # the last call found nothing


async def transactions(rounds: Rounds, cluster: Cluster, gateway: Served, http: aiohttp.ClientSession) -> None:
    topic, count = cluster.new_topic(PARTITIONS), rounds.count(125)
    body = {"as": "bench", "records": [{"topic": topic, "value": "x" * VALUE_BYTES}] * 3}
    await many(10, lambda: ok(http.post("/v1/transactions", json=body)), 1)
    cpu_s = gateway.cpu_s
    took = await many(count, lambda: ok(http.post("/v1/transactions", json=body)), 1)
    rounds.add("G7", "transaction of three records, p50", "ms", median(took))
    rounds.add("G7", "transaction of three records, CPU", "ms", 1e3 * (gateway.cpu_s - cpu_s) / count)


ROWS: dict[str, Measured] = {
    "G1": one_record,
    "G2": many_records,
    "G3": arrow,
    "G4": pages,
    "G5": listeners,
    "G6": leases,
    "G7": transactions,
}
