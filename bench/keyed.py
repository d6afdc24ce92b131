"""V1 to V6: records as programs send them: text with a key, and with a key and a header, beside the same records
through confluent-kafka; and what handling costs a client.

Keys and values are text, which both clients encode. Processor time is that of the client's process alone; of
confluent-kafka it includes the library's own threads. Kafka's Java tool sends no keys, so it is not here. One
broker on local files, with fsync, eight partitions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.load import payloads_in
from bench.measures import Results, alternate
from bench.ours import Cluster
from bench.peers import confluent, kafka
from bench.throughput import OURS, PARTITIONS, rate

RECORDS, HANDLED, VALUE_BYTES = 1_000_000, 100_000, 100
KEYED = {"V1": "produce 100 B with a key", "V2": "produce 100 B with a key and a header"}
CPU = "client CPU"
HANDLING = {
    "V4": ("consumer", "async for, records with keys"),
    "V5": ("group", "async for of a group, records with keys"),
    "V6": ("handler", "an empty handler"),
}
QUEUED = "an empty handler of a queue, 16 at a time"


class Keyed:
    """`scale`: a quick run takes a fraction of the records. `peers`: None: without Kafka."""

    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None) -> None:
        self._results, self._rounds = results, rounds
        self._records, self._handled = int(RECORDS * scale), int(HANDLED * scale)
        self._has_kafka = peers is not None

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            ours = Cluster(folder, (folder / "root").as_uri())
            stack.callback(ours.close)
            peer = None
            if self._has_kafka:
                peer = stack.enter_context(confluent.running(stack.enter_context(kafka.running(folder))))
            payloads = payloads_in(folder, VALUE_BYTES)
            for row, what in KEYED.items():
                self._keyed(row, what, ours, peer, payloads)
            self._both("V3", "produce 100 B of text", {f"{OURS} send_many": self._client(ours, "keyed", via="values")})
            full = ours.new_topic(PARTITIONS)
            ours.client("keyed", full, records=self._records, via="send_batch")
            for row, (via, what) in HANDLING.items():
                self._both(row, what, {OURS: partial(self._handle, ours, full, via)})
            self._both("V6", QUEUED, {OURS: partial(self._handle, ours, full, "queue_handler")})

    def _keyed(self, row: str, what: str, ours: Cluster, peer: confluent.Confluent | None, payloads: Path) -> None:
        header = row == "V2"
        ways = ("send", "send_many") if header else ("send", "send_many", "send_batch")
        subjects = {f"{OURS} {via}": self._client(ours, "keyed", via=via, header=header) for via in ways}
        if peer is not None:
            subjects[peer.subject] = lambda: peer.produce_keyed(
                peer.new_topic(), self._records, payloads, header=header
            )
        self._both(row, what, subjects)

    def _client(self, ours: Cluster, what: str, **options: Any) -> Callable[[], dict[str, float]]:
        return lambda: ours.client(
            what, ours.new_topic(PARTITIONS), records=self._records, value_bytes=VALUE_BYTES, **options
        )

    def _handle(self, ours: Cluster, topic: str, via: str) -> dict[str, float]:
        return ours.client("handled", topic, records=self._handled, via=via)

    def _both(self, row: str, what: str, subjects: dict[str, Callable[[], dict[str, float]]]) -> None:
        """Measure records a second, and the client's processor time of the same runs."""

        def measured(name: str, run: Callable[[], dict[str, float]]) -> float:
            found = run()
            self._results.add(row, f"{what}, {CPU}", name, "µs/record", 1e6 * found["cpu_s"] / found["records"])
            return rate(found)

        alternate(
            self._results,
            row,
            what,
            "records/s",
            {name: partial(measured, name, run) for name, run in subjects.items()},
            self._rounds,
        )
