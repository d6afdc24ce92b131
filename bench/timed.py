"""D1 to D6: timed messages: sending them beside plain records; delivery of many that are due together; memory and
takeover while many wait; precision; requests of an idle cluster in which messages wait; and RocketMQ's timer wheel.

D1 sends records one by one with one client, as plain records and as timed ones, from the first call until the last
acknowledgement. Timed ones are due at random seconds of the hour that begins in an hour, so none is delivered
meanwhile. D2 sends records of 100 B that are all due at one moment, and counts from that moment until all are
appended to their topic, and until a consumer has all. The live producer sends plain records to another topic; only
records of the time of the delivery count. Its latency alone is that of the seconds before.

D3 shows the memory that a broker takes beyond what it took before the first message: at the end of sending, and after
the messages were moved to their ranges; and the same for as many plain records. Then it kills owners as P6 does, from
the end of sending on: with the messages waiting, and without any. D4 sends records for a minute that are due 2 to 10
s ahead, and times each from its due time until a consumer at the end of the topic has it, by the clock of the
machine; a broker goes by the clock of the store. It does the same with a million that are due at random seconds of
one minute, so that each second needs some rows of all that was sent. D5 counts requests of one broker in an idle
minute, without its heartbeats, three minutes after messages were moved to their ranges: two minutes after the move
the intake's log starts move, and what they free is deleted. What a cluster without waiting messages requests is
subtracted. Both have delivered a timed message before.

D6 compares with RocketMQ with one broker and one client of each. Both send messages of 100 B one by one, many in
flight, because RocketMQ delays no batches. Delivery counts from the due time of all until a consumer has the last
one. Precision is measured as in D4.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ledgermq
import ledgermq.sync
from bench.load import payloads_in
from bench.measures import Results, alternate
from bench.ours import Cluster, answer, stop_client, wait_until_warm
from bench.peers import rocketmq
from bench.peers.peer import STREAMS
from bench.percentiles import at, latencies_within
from bench.takeover import PARTITIONS as TAKEOVER_PARTITIONS
from bench.takeover import WHAT as KILLED
from bench.takeover import kill_and_watch
from tests.e2e.admin_port import ADMIN

PARTITIONS, HOUR_S, MIB = 8, 3600, 1024 * 1024
PARTS = ((0.5, "p50"), (0.99, "p99"))
OURS = "LedgerMQ"

PLAIN, TIMED = "plain", "timed"
SENT = {1000: 200_000, 100: 400_000}
"""D1: number of records, by their size."""

DUE_RECORDS, SMALL_BYTES = 1_000_000, 100
LEAD_S, LEAD_PER_S = 15.0, 15_000
"""D2: the records are due so long after the first one is sent, and a second for so many of them."""
LEAD_TRIES = 3
READY_S = 2.0
"""A live producer or a receiver is warm so long before records are due."""
DELIVERED = "delivery of 100 B records that are due together"
APPENDED, READ, LIVE = "until appended", "until a consumer has them", "until appended, a live producer beside"
LIVE_RATE, LIVE_S = 100.0, 10.0
ALONE, BESIDE = "alone", "beside a delivery"
POLL_S = 0.01
DELIVERY_S_MAX = 600.0

WAITING = 1_000_000
KILLS = 10
MOVED_S_MAX = 600.0
MORE_MEMORY = "memory beyond that before"
AFTER_SENDING, AFTER_MOVE = MEMORY_WHEN = ("after sending", "after the move to ranges")
KILLED_TIMED = "kill -9 until a timed message is acknowledged"

PRECISE_S, PRECISE_RATE = 60.0, 100.0
LATE = "from due until a consumer has it, 100/s"
EARLY = "records that came early"
SPREAD_S = 60
CROWDED = f"from due until a consumer has it, {DUE_RECORDS:,} due at random seconds of a minute"

IDLE_WAITING, IDLE_S, IDLE_SETTLE_S = 10_000, 60.0, 180.0
REQUESTS, BEYOND = "idle for a minute", "idle for a minute, beyond a cluster without"
QUICK_LIMITS = ("--constant-flush-after-ms=2000", "--constant-log-start-ms=2000")
"""Options of brokers in a quick run, which does not wait minutes for messages to be moved."""
QUICK_SETTLE_S = 10.0

PEER_RECORDS = 100_000
PEER_LEAD_S = 60.0
PEER_SENT, PEER_DELIVERED = "send timed 100 B", "delivery of timed 100 B that are due together"


def waiting(count: int) -> str:
    return f"{count:,} messages wait" if count else "no messages wait"


def sending(value_bytes: int) -> str:
    return f"send {value_bytes} B"


def late(part: str) -> str:
    return f"{LATE}, {part}"


def crowded(part: str) -> str:
    return f"{CROWDED}, {part}"


def live(part: str) -> str:
    return f"acknowledgement at {LIVE_RATE:.0f}/s, {part}"


@contextmanager
def _broker(*options: str, brokers: int = 1) -> Iterator[Cluster]:
    """Start brokers on an empty folder."""
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        with closing(Cluster(folder, (folder / "root").as_uri(), brokers, *options)) as cluster:
            yield cluster


def _send_waiting(cluster: Cluster, topic: str, count: int) -> None:
    """Send messages that are due long after the measurement."""
    cluster.client("send", topic, records=count, value_bytes=SMALL_BYTES, spread_s=HOUR_S)


def _wait_until_moved(cluster: Cluster, count: int) -> None:
    """Wait until so many messages are in ranges. Raises RuntimeError if that takes too long."""
    until_s = time.perf_counter() + MOVED_S_MAX
    with ledgermq.sync.connect(cluster.brokers.addresses) as client:
        while time.perf_counter() < until_s:
            bundles = client.list_delayed(messages_max=0).bundles
            moved = sum(each.messages for bundle in bundles for each in bundle.ranges)
            if moved >= count:
                return
            time.sleep(0.5)
    raise RuntimeError(f"{moved:,} of {count:,} messages were moved to ranges within {MOVED_S_MAX:.0f} s")


class Sending:
    """D1."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale

    def run(self) -> None:
        with _broker() as cluster:
            for value_bytes in SENT:
                subjects = {name: partial(self._send, cluster, value_bytes, name) for name in (PLAIN, TIMED)}
                alternate(self._results, "D1", sending(value_bytes), "records/s", subjects, self._rounds)

    def _send(self, cluster: Cluster, value_bytes: int, name: str) -> float:
        due = {"spread_s": HOUR_S} if name == TIMED else {}
        records = int(SENT[value_bytes] * self._scale)
        done = cluster.client("send", cluster.new_topic(PARTITIONS), records=records, value_bytes=value_bytes, **due)
        return float(done["records"] / done["seconds"])


class Delivery:
    """D2."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds = results, max(1, rounds // 2)
        self._records = int(DUE_RECORDS * scale)

    def run(self) -> None:
        subjects: Mapping[str, Callable[[Cluster], float]] = {
            APPENDED: self._appended,
            READ: self._read,
            LIVE: self._beside,
        }
        for number in range(self._rounds):
            for name in list(subjects)[:: 1 if number % 2 == 0 else -1]:
                with _broker() as cluster:
                    rate = self._records / subjects[name](cluster)
                self._results.add("D2", DELIVERED, name, "records/s", rate)

    def _appended(self, cluster: Cluster) -> float:
        topic, due_s = self._sent(cluster)
        return asyncio.run(_appended_at_s(cluster, topic, self._records)) - due_s

    def _read(self, cluster: Cluster) -> float:
        topic, due_s = self._sent(cluster)
        reader = cluster.start_client("receive", topic, records=self._records)
        wait_until_warm(reader)
        _check_in_time(due_s)
        found = answer(reader)
        assert found["early"] == 0, f"{found['early']} messages came before they were due"
        return float(found["ended_at_s"] - due_s)

    def _beside(self, cluster: Cluster) -> float:
        tail = cluster.new_topic(PARTITIONS)
        topic, due_s = self._sent(cluster, LIVE_S)
        producer = cluster.start_client("live", tail, rate=LIVE_RATE)
        wait_until_warm(producer)
        _check_in_time(due_s)
        ended_s = asyncio.run(_appended_at_s(cluster, topic, self._records))
        latencies = stop_client(producer)["latencies"]
        for name, begin_s, end_s in ((ALONE, 0.0, due_s), (BESIDE, due_s, ended_s)):
            found = latencies_within(latencies, begin_s, end_s)
            for part, which in PARTS:
                self._results.add("D2", live(which), name, "ms", at(found, part))
        return ended_s - due_s

    def _sent(self, cluster: Cluster, ready_s: float = 0.0) -> tuple[str, float]:
        """Return a topic for which all records wait, and when they are due, `ready_s` from now or later.

        Where sending took too long, as on a busy machine, the records are sent again with a later time,
        once the first ones are delivered.
        """
        lead_s = LEAD_S + self._records / LEAD_PER_S + ready_s
        for _ in range(LEAD_TRIES):
            topic, due_s = cluster.new_topic(PARTITIONS), float(int(time.time() + lead_s))
            cluster.client("send", topic, records=self._records, value_bytes=SMALL_BYTES, at=due_s)
            if time.time() + ready_s + 2 * READY_S < due_s:
                return topic, due_s
            print(f"D2: {self._records:,} records were not sent within {lead_s:.0f} s", file=sys.stderr)
            asyncio.run(_appended_at_s(cluster, topic, self._records))
            lead_s *= 2
        raise RuntimeError(f"{self._records:,} records cannot be sent before they are due")


def _check_in_time(due_s: float) -> None:
    if time.time() >= due_s:
        raise RuntimeError("a client was not ready before records were due: the machine is too busy")


async def _appended_at_s(cluster: Cluster, topic: str, records: int) -> float:
    """Return when so many records are in the topic, in seconds since the epoch."""
    async with asyncio.timeout(DELIVERY_S_MAX), ledgermq.connect(cluster.brokers.addresses) as client:
        while sum((await client.list_offsets(topic)).values()) < records:  # noqa: ASYNC110  a look now and then
            await asyncio.sleep(POLL_S)
        return time.time()


class Waiting:
    """D3."""

    def __init__(self, results: Results, scale: float) -> None:
        self._results, self._count = results, int(WAITING * scale)
        self._kills, self._limits = (KILLS, ()) if scale >= 1 else (2, QUICK_LIMITS)

    def run(self) -> None:
        self._memory()
        for count in (0, self._count):
            for what, delay_s in ((KILLED, None), (KILLED_TIMED, 2.0 * HOUR_S)):
                with _broker(brokers=3) as cluster:
                    topic = cluster.new_topic(TAKEOVER_PARTITIONS)
                    if count:
                        _send_waiting(cluster, cluster.new_topic(PARTITIONS), count)
                    gaps = sorted(asyncio.run(kill_and_watch(cluster, topic, self._kills, delay_s)))
                for part, which in PARTS:
                    self._results.add("D3", f"{what}, {which}", waiting(count), "s", at(gaps, part))

    def _memory(self) -> None:
        for name, due in ((PLAIN, {}), (TIMED, {"spread_s": HOUR_S})):
            with _broker(*self._limits) as cluster:
                topic = cluster.new_topic(PARTITIONS)
                cluster.client("send", topic, records=2, value_bytes=SMALL_BYTES, **due)
                before = cluster.rss_bytes()
                self._results.add("D3", "memory before", self._subject(name), "MiB", before / MIB)
                cluster.client("send", topic, records=self._count, value_bytes=SMALL_BYTES, **due)
                self._more(AFTER_SENDING, name, cluster, before)
                if name == TIMED:
                    _wait_until_moved(cluster, self._count)
                    self._more(AFTER_MOVE, name, cluster, before)

    def _more(self, when: str, name: str, cluster: Cluster, before: int) -> None:
        value = (cluster.rss_bytes() - before) / MIB
        self._results.add("D3", f"{MORE_MEMORY}, {when}", self._subject(name), "MiB", value)

    def _subject(self, name: str) -> str:
        return waiting(self._count) if name == TIMED else f"{self._count:,} plain records"


class Precision:
    """D4."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._seconds = results, max(1, rounds // 2), PRECISE_S * scale
        self._records = int(DUE_RECORDS * scale)

    def run(self) -> None:
        with _broker() as cluster:
            for _ in range(self._rounds):
                _add_precision(self._results, "D4", OURS, _precision(cluster, self._seconds))
        for _ in range(self._rounds):
            with _broker() as cluster:
                self._crowd(cluster)

    def _crowd(self, cluster: Cluster) -> None:
        topic = cluster.new_topic(PARTITIONS)
        reader = cluster.start_client("receive", topic, records=self._records)
        wait_until_warm(reader)
        due = {"ahead_s": int(LEAD_S + self._records / LEAD_PER_S), "spread_s": SPREAD_S}
        cluster.client("send", topic, records=self._records, value_bytes=SMALL_BYTES, **due)
        found = answer(reader)
        assert found["early"] == 0, f"{found['early']} messages came before they were due"
        for _, which in PARTS:
            self._results.add("D4", crowded(which), OURS, "ms", found[f"{which}_ms"])


def _precision(cluster: Cluster, seconds: float) -> dict[str, Any]:
    return cluster.client("precise", cluster.new_topic(1), seconds=seconds, rate=PRECISE_RATE)


def _add_precision(results: Results, row: str, subject: str, found: Mapping[str, float]) -> None:
    for _, which in PARTS:
        results.add(row, late(which), subject, "ms", found[f"{which}_ms"])
    results.add(row, EARLY, subject, "", found["early"])


class Idle:
    """D5."""

    def __init__(self, results: Results, scale: float) -> None:
        self._results, self._count = results, int(IDLE_WAITING * scale)
        self._seconds = max(15.0, IDLE_S * scale)
        self._settle_s, self._limits = (IDLE_SETTLE_S, ()) if scale >= 1 else (QUICK_SETTLE_S, QUICK_LIMITS)

    def run(self) -> None:
        without, with_messages = (self._requests(count) for count in (0, self._count))
        self._results.add("D5", BEYOND, waiting(self._count), "requests", with_messages - without)

    def _requests(self, count: int) -> float:
        """Return the requests of a minute beside heartbeats."""
        with _broker(*ADMIN, *self._limits) as cluster:
            topic = cluster.new_topic(PARTITIONS)
            cluster.client("send", topic, records=1, at=time.time() + 1)
            asyncio.run(_appended_at_s(cluster, topic, 1))
            if count:
                _send_waiting(cluster, topic, count)
                _wait_until_moved(cluster, count)
            time.sleep(self._settle_s)  # the intake's log start moves, and what was written becomes Parquet
            before = cluster.bill()
            time.sleep(self._seconds)
            requests = cluster.bill().since(before).beside_heartbeats * 60 / self._seconds
        self._results.add("D5", REQUESTS, waiting(count), "requests", requests)
        return requests


class Sent(NamedTuple):
    """Rates of one run: records a second."""

    sent_per_s: float
    delivered_per_s: float


class Beside:
    """D6."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds = results, max(1, rounds // 2)
        self._records, self._seconds = int(PEER_RECORDS * scale), PRECISE_S * scale
        self._with_peers = scale >= 1

    def run(self) -> None:
        with ExitStack() as stack:
            ours = stack.enter_context(_broker())
            due: dict[str, Callable[[], Sent]] = {OURS: partial(self._our_sent, ours)}
            precise: dict[str, Callable[[], Mapping[str, float]]] = {OURS: partial(_precision, ours, self._seconds)}
            if self._with_peers:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
                payloads = payloads_in(folder, SMALL_BYTES)
                peer = stack.enter_context(rocketmq.running(folder))
                due[peer.subject] = partial(self._peer_sent, peer, payloads)
                precise[peer.subject] = partial(self._peer_precision, peer, payloads)
            for number in range(self._rounds):
                for name in list(due)[:: 1 if number % 2 == 0 else -1]:
                    found = due[name]()
                    self._results.add("D6", PEER_SENT, name, "records/s", found.sent_per_s)
                    self._results.add("D6", PEER_DELIVERED, name, "records/s", found.delivered_per_s)
                    _add_precision(self._results, "D6", name, precise[name]())

    def _our_sent(self, ours: Cluster) -> Sent:
        topic, due_s = ours.new_topic(STREAMS), float(int(time.time() + PEER_LEAD_S))
        reader = ours.start_client("receive", topic, records=self._records)
        wait_until_warm(reader)
        sent = ours.client("send", topic, records=self._records, value_bytes=SMALL_BYTES, at=due_s)
        _check_in_time(due_s)
        return Sent(sent["records"] / sent["seconds"], self._records / (answer(reader)["ended_at_s"] - due_s))

    def _peer_sent(self, peer: rocketmq.RocketMQ, payloads: Path) -> Sent:
        topic, due_s = peer.new_topic(), float(int(time.time() + PEER_LEAD_S))
        with peer.receiving(topic, self._records) as received:
            sent = peer.send_timed(topic, self._records, payloads, at_s=due_s)
            _check_in_time(due_s)
            found = received()
        return Sent(sent["per_s"], self._records / (found["ended_at_s"] - due_s))

    def _peer_precision(self, peer: rocketmq.RocketMQ, payloads: Path) -> Mapping[str, float]:
        topic, records = peer.new_topic(), int(PRECISE_RATE * self._seconds)
        with peer.receiving(topic, records) as received:
            peer.send_timed(topic, records, payloads, rate=PRECISE_RATE)
            return received()
