"""P13: what one client reaches in a run that goes on, ten million records of 100 B, beside Kafka and
beside limits of the machine.

A run of P1 to P3 takes a half to five seconds. In that time Java still compiles what it runs, and a
consumer of LedgerMQ still finds out how much to ask for. Here both have passed that, and the limits take
turns with them. The broker's defaults let it keep a quarter of these records in memory; it reads the
others from its files, and Kafka from the page cache.

So the targets of consuming are shares of these limits. Until November 2026 they were 1.5 and 3 times
Kafka's Java consumer, which is more than one core does that only makes tuples, or only decodes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import limits
from bench.load import payloads_in
from bench.measures import Results, alternate
from bench.ours import Cluster
from bench.peers import kafka
from bench.throughput import KAFKA, OURS, PARTITIONS, rate

ROW = "P13"
RECORDS, VALUE_BYTES = 10_000_000, 100
PRODUCE, CONSUME = (f"{what} {VALUE_BYTES} B, ten million records" for what in ("produce", "consume"))


class LongRuns:
    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None) -> None:
        """`peers`: None: without Kafka."""
        self._results, self._rounds, self._records = results, rounds, int(RECORDS * scale)
        self._has_kafka = peers is not None

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            ours = Cluster(folder, (folder / "root").as_uri())
            stack.callback(ours.close)
            topics: dict[str, str] = {}

            def produce(via: str) -> float:
                topics[OURS] = ours.new_topic(PARTITIONS)
                shape = {"records": self._records, "value_bytes": VALUE_BYTES}
                return rate(ours.client("produce", topics[OURS], via=via, **shape))

            def consume(via: str) -> float:
                return rate(ours.client("consume", topics[OURS], records=self._records, via=via))

            producing: dict[str, Callable[[], float]] = {
                f"{OURS} {via}": partial(produce, via) for via in ("send", "send_batch")
            }
            consuming: dict[str, Callable[[], float]] = {
                f"{OURS} {via}": partial(consume, via) for via in ("messages", "arrow")
            }
            if self._has_kafka:
                peer = stack.enter_context(kafka.running(folder))
                payloads = payloads_in(folder, VALUE_BYTES)

                def produce_there() -> float:
                    topics[KAFKA] = peer.new_topic()
                    return peer.produce(topics[KAFKA], self._records, payloads)["per_s"]

                producing[KAFKA] = produce_there
                consuming[KAFKA] = lambda: peer.consume(topics[KAFKA], self._records)["per_s"]
            for subjects, bounds in (
                (producing, (limits.KEEPS, limits.ENCODES[VALUE_BYTES])),
                (consuming, (limits.MAKES, limits.DECODES[VALUE_BYTES])),
            ):
                subjects |= {limit.what: partial(limit.measured, limit.count) for limit in bounds}
            alternate(self._results, ROW, PRODUCE, "records/s", producing, self._rounds)
            alternate(self._results, ROW, CONSUME, "records/s", consuming, self._rounds)
